"""A launch's tensors as copies between closed pages, and what the runner noted about them."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dsacp.ascend_ir.errors import LaunchError
from dsacp.ascend_ir.library import runtime

Guard = Literal["end", "start"]


@dataclass(frozen=True)
class Reached:
    """Memory that a kernel reaches through an address which one of its tensors holds.

    Attributes:
        name: for reports.
        holder: the argument that holds the address.
        word: which 64-bit word of the holder it is.
        address: the address.
        size: bytes that may be read there.
    """

    name: str
    holder: str
    word: int
    address: int
    size: int


@dataclass(frozen=True)
class Span:
    """Bytes of this process that a launch may touch; several arguments may share them."""

    names: tuple[str, ...]
    start: int
    size: int


@dataclass(frozen=True)
class _Placed:
    span: Span
    at: int
    before: ctypes.Array[ctypes.c_char]


class Note(ctypes.Structure):
    """The runner's note of what went wrong at one place; see runtime.c."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("site", ctypes.c_int32),
        ("slot", ctypes.c_int32),
        ("programs", ctypes.c_int32 * 4),
        ("num_programs", ctypes.c_int32),
        ("nearest", ctypes.c_int64),
        ("farthest", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


def span_of(name: str, tensor: torch.Tensor) -> Span:
    """Return the bytes from a tensor's first element to its last one."""
    size = 0
    if tensor.numel():
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size()
    return Span((name,), tensor.data_ptr(), size)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Join spans that share bytes: a store through one argument is seen through the other."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda item: (item.start, -item.size)):
        last = joined[-1] if joined else None
        if last and span.size and span.start < last.start + last.size:
            size = max(last.start + last.size, span.start + span.size) - last.start
            joined[-1] = Span((*last.names, *span.names), last.start, size)
        else:
            joined.append(span)
    return joined


class Arena:
    """The copies of one launch; a context, in which they exist."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._placed: list[_Placed] = []

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *_: object) -> None:
        runtime().ascend_ir_clear()

    def place(self, spans: Sequence[Span], reached: Sequence[Reached]) -> None:
        """Copy all memory, and let the copies of addresses name the copies of what they reach."""
        self._put_all(merged(spans))
        kept: dict[tuple[int, int], _Placed] = {}
        for item in reached:
            key = item.address, item.size
            if key not in kept:
                kept[key] = self._put(Span((item.name,), item.address, item.size))
            self._point(item, kept[key].at)

    def _put_all(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._put(span)

    def address(self, span: Span) -> int:
        """Return where the copy of an argument's first byte lies."""
        for item in self._placed:
            if span.names[0] in item.span.names:
                return item.at + span.start - item.span.start
        raise KeyError(span.names[0])

    def name(self, slot: int) -> str:
        """Return whose bytes a slot holds."""
        return " or ".join(self._placed[slot].span.names)

    def restore(self) -> None:
        """Give every copy the bytes that it had at first."""
        for item in self._placed:
            ctypes.memmove(item.at, item.before, item.span.size)

    def contents(self) -> list[bytes]:
        """Return the bytes of every copy."""
        return [ctypes.string_at(item.at, item.span.size) for item in self._placed]

    def copy_back(self) -> None:
        """Write what a launch changed; addresses that were exchanged stay as they were."""
        for item in self._placed:
            after = ctypes.string_at(item.at, item.span.size)
            if after != item.before.raw[: item.span.size]:
                _write_changes(item, after)

    def _put(self, span: Span) -> _Placed:
        held = ctypes.string_at(span.start, span.size) if span.size else b""
        before = ctypes.create_string_buffer(held, max(span.size, 1))
        at = runtime().ascend_ir_place(before, span.size, self._guard == "end", True)
        if not at:
            raise LaunchError(
                f"expected at most 96 arguments of 16 GiB, found {len(self._placed) + 1} with "
                f"{span.names[0]} of {span.size} bytes: run a smaller case"
            )
        placed = _Placed(span, at, before)
        self._placed.append(placed)
        return placed

    def _point(self, item: Reached, address: int) -> None:
        holder = next(p for p in self._placed if item.holder in p.span.names)
        offset = 8 * item.word
        if offset + 8 > holder.span.size:
            raise LaunchError(
                f"expected word {item.word} inside {item.holder}, found {holder.span.size} bytes: "
                f"`reach` must name a 64-bit word that holds the address of {item.name}"
            )
        # also in the first state, so that the exchange is no change
        for copy in (holder.at, ctypes.addressof(holder.before)):
            ctypes.c_int64.from_address(copy + offset).value = address


def _write_changes(item: _Placed, after: bytes) -> None:
    size = item.span.size
    old = torch.frombuffer(bytearray(item.before.raw[:size]), dtype=torch.uint8)
    new = torch.frombuffer(bytearray(after), dtype=torch.uint8)
    home = (ctypes.c_uint8 * size).from_address(item.span.start)
    torch.frombuffer(home, dtype=torch.uint8)[old != new] = new[old != new]
