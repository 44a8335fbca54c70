"""One launch: its arguments, its programs in their order, and what went wrong in them."""

import ctypes
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dsacp.ascend_ir.errors import IrError, LaunchError, UninitialisedError
from dsacp.ascend_ir.launch import Launch
from dsacp.ascend_ir.library import Library, runtime
from dsacp.ascend_ir.lower import Level
from dsacp.ascend_ir.memory import Arena, Guard, Note, Reached, Span, span_of
from dsacp.ascend_ir.report import Fault, error_of

Order = Literal["forward", "reverse", "shuffle"]
Reach = Callable[[Launch, Mapping[str, Any]], Iterable[Reached]]
"""Names the memory that a launch with these arguments reaches through addresses in its tensors."""

POISONS = (0x5B, 0xA4)
"""Bytes of local memory that nothing was written to."""

_KINDS = ("load", "store", "writes", "read")
_NUMBERS = {"fp32": ctypes.c_float, "i64": ctypes.c_int64, "i1": ctypes.c_bool}


class _Descriptor(ctypes.Structure):
    """MLIR's description of a tensor; the size does not bound anything."""

    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Job:
    """A launch and how it is run."""

    level: Level
    order: Order
    reach: Reach | None
    launch: Launch
    values: dict[str, Any]
    grid: tuple[int, int, int]
    library: Library

    def run_in_place(self) -> int:
        """Run on the tensors themselves, and return the bytes of local memory."""
        spans = self._spans()
        self._run_programs({name: span.start for name, span in spans.items()}, POISONS[0], False)
        return int(runtime().ascend_ir_peak())

    def run_guarded(self, guard: Guard) -> int:
        """Run on copies, and write them back if nothing was wrong.

        Raises:
            IrError: something was.
        """
        spans = self._spans()
        reach = self.reach
        reached = list(reach(self.launch, self.values)) if reach else []
        with Arena(guard) as arena:
            arena.place(list(spans.values()), reached)
            addresses = {name: arena.address(span) for name, span in spans.items()}
            self._run_programs(addresses, POISONS[0], True)
            peak = int(runtime().ascend_ir_peak())
            self._raise_faults(arena)
            self._compare_poisons(arena, addresses)
            arena.copy_back()
        return peak

    def _spans(self) -> dict[str, Span]:
        tensors = {n: v for n, v in self.values.items() if isinstance(v, torch.Tensor)}
        for name, tensor in tensors.items():
            if tensor.device.type != "cpu":
                raise LaunchError(
                    f"expected {name} of {self.launch.name} on the CPU, found it on "
                    f"{tensor.device}: move it"
                )
        return {name: span_of(name, tensor) for name, tensor in tensors.items()}

    def _compare_poisons(self, arena: Arena, addresses: Mapping[str, int]) -> None:
        first = arena.contents()
        arena.restore()
        self._run_programs(addresses, POISONS[1], True)
        for slot, (one, other) in enumerate(zip(first, arena.contents(), strict=True)):
            if one != other:
                at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
                raise UninitialisedError(
                    f"expected the same result of {self.launch.name} whatever local memory held, "
                    f"found another byte {at} of {arena.name(slot)}: initialise what a masked load "
                    "leaves out (`other=`), or mask what is computed from it"
                )

    def _run_programs(self, addresses: Mapping[str, int], poison: int, guarded: bool) -> None:
        arguments = self._arguments(addresses)
        library = runtime()
        library.ascend_ir_begin(guarded, guarded)
        for x, y, z in self._ordered():
            block = (x * self.grid[1] + y) * self.grid[2] + z
            library.ascend_ir_program(ctypes.c_int64(block), ctypes.c_int64(block), poison)
            if self.level == "linalg":
                ids = (ctypes.c_int32(value) for value in (*self.grid, x, y, z))
                self.library.call(*arguments, *ids)
            else:
                sizes = (ctypes.c_int32(value) for value in self.grid)
                self.library.call(ctypes.c_int64(0), *arguments, *sizes)
            library.ascend_ir_program_end()

    def _arguments(self, addresses: Mapping[str, int]) -> list[Any]:
        """Return the C interface's arguments: two of the launcher's own come first."""
        made: list[Any] = [_describe(0), _describe(0)]
        for name, kind in self.launch.signature.items():
            if name in addresses:
                made.append(_describe(addresses[name]))
            else:
                made.append(_NUMBERS.get(kind, ctypes.c_int32)(self.values[name]))
        return made

    def _ordered(self) -> list[tuple[int, int, int]]:
        width, height, depth = self.grid
        programs = [(x, y, z) for x in range(width) for y in range(height) for z in range(depth)]
        if self.order == "reverse":
            programs.reverse()
        elif self.order == "shuffle":
            random.Random(len(programs)).shuffle(programs)
        return programs

    def _raise_faults(self, arena: Arena) -> None:
        notes, lost = ctypes.POINTER(Note)(), ctypes.c_int32()
        count = runtime().ascend_ir_notes(ctypes.byref(notes), ctypes.byref(lost))
        if count:
            raise self._error([notes[index] for index in range(count)], arena, lost.value)

    def _error(self, notes: Sequence[Note], arena: Arena, lost: int) -> IrError:
        return error_of([self._fault(note, arena) for note in notes], lost)

    def _fault(self, note: Note, arena: Arena) -> Fault:
        kind: Any = _KINDS[note.kind]
        argument = {-1: "a local buffer", -2: "no argument"}.get(note.slot)
        race = kind in ("writes", "read")
        return Fault(
            kernel=self.launch.name,
            kind=kind,
            argument=argument or arena.name(note.slot),
            side="at" if race else "before" if note.nearest < 0 else "after",
            nearest=note.nearest,
            farthest=note.farthest,
            count=note.count,
            programs=tuple(self._program(note.programs[i]) for i in range(note.num_programs)),
            line=self.library.sites[note.site],
        )

    def _program(self, block: int) -> tuple[int, int, int]:
        rest, z = divmod(block, self.grid[2])
        x, y = divmod(rest, self.grid[1])
        return x, y, z


def _describe(address: int) -> Any:
    return ctypes.byref(_Descriptor(address, address, 0, 1 << 40, 1))
