"""What a launch did wrong, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsacp.ascend_ir.errors import IrError, MemoryFaultError, RaceError

Kind = Literal["load", "store", "writes", "read"]
SHOWN = 8


@dataclass(frozen=True)
class Fault:
    """Accesses of one source line to bytes outside, or to words that depend on the order.

    Attributes:
        kernel: its name.
        kind: "load" or "store" outside; "writes" of two values to one word; "read" of a word
            that another program writes.
        argument: the argument, "a local buffer", or "no argument".
        side: "before" or "after" the argument; for a race "at".
        nearest: bytes from the argument's first or last byte to the nearest one; for a race, the
            first byte's offset.
        farthest: the same of the farthest one.
        count: accesses.
        programs: program ids (x, y, z), at most four.
        line: "file:line", with the caller's where it is inlined.
    """

    kernel: str
    kind: Kind
    argument: str
    side: Literal["before", "after", "at"]
    nearest: int
    farthest: int
    count: int
    programs: tuple[tuple[int, int, int], ...]
    line: str

    def __str__(self) -> str:
        programs = ", ".join(str(program) for program in self.programs)
        what = {
            "load": "loads",
            "store": "stores",
            "writes": "stores, over another program's value, of",
            "read": "accesses to what another program writes and this one reads, of",
        }[self.kind]
        low, high = sorted((abs(self.nearest), abs(self.farthest)))
        distance = f"{low}" if low == high else f"{low} to {high}"
        if self.side == "at":
            where = f"{self.argument} at byte {distance}"
        elif self.argument == "no argument":
            where = f"address {self.nearest & (2**64 - 1):#x}, which no argument is near"
        else:
            where = f"{self.argument}, {distance} bytes {self.side} it"
        return (
            f"{self.count} {what} {where}, by program {programs} of {self.kernel}, at {self.line}"
        )


def error_of(faults: Sequence[Fault], lost: int = 0) -> IrError:
    """Return the error that tells of all ``faults``; memory comes before races."""
    outside = [fault for fault in faults if fault.kind in ("load", "store")]
    shown = outside or list(faults)
    lines = "".join(f"\n  {fault}" for fault in shown[:SHOWN])
    more = max(len(shown) - SHOWN, 0) + lost
    rest = f"\n  and {more} more places" if more > 0 else ""
    if outside:
        return _with(
            MemoryFaultError(
                "expected every access inside an argument or a local buffer, found outside: clamp "
                f"the address, or mask by a range of lanes{lines}{rest}"
            ),
            shown,
        )
    return _with(
        RaceError(
            "expected the same words whatever the order of programs, found words that two programs "
            f"share: let one program own each{lines}{rest}"
        ),
        shown,
    )


def _with(error: IrError, faults: Sequence[Fault]) -> IrError:
    error.faults = tuple(faults)
    return error
