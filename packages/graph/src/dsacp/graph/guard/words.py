"""Guard words and poison: what is written around and into buffers to catch wrong writes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from dsacp.core import GUARD_WORD, BufferRegion, CapacityError, LayoutError, StaleAddressError
from dsacp.graph.tape.foreign import WeakTensor

POISON_WORD = 0x7FFF_FFFF
"""As int32 the largest value, as float32 (and as two 16-bit floats) NaN."""

_WORD = 4


@dataclass(frozen=True)
class Arena:
    """One storage as int32 words, held weakly, with the regions in it in address order."""

    storage: WeakTensor
    base: int
    regions: tuple[BufferRegion, ...]

    @classmethod
    def of(cls, storage: Tensor, regions: Sequence[BufferRegion]) -> "Arena":
        """View a contiguous storage as words and pick the regions inside it.

        Raises:
            LayoutError: the storage is not contiguous, not of whole words, or a region sticks out.
        """
        nbytes = storage.numel() * storage.element_size()
        if not storage.is_contiguous() or nbytes % _WORD or storage.data_ptr() % _WORD:
            raise LayoutError(
                "expected a contiguous arena of whole 4-byte words, found "
                f"{storage.dtype} of shape {tuple(storage.shape)} and stride {storage.stride()}: "
                "pass the whole storage"
            )
        base, end = storage.data_ptr(), storage.data_ptr() + nbytes
        inside = sorted(
            (region for region in regions if base <= region.address < end),
            key=lambda region: region.address,
        )
        for region in inside:
            if region.end > end:
                raise LayoutError(
                    f"expected {region.label} and its guard inside the arena [{base:#x}, {end:#x}),"
                    f" found them to end at {region.end:#x}: take regions and arena from one owner"
                )
        return cls(WeakTensor(storage.detach().reshape(-1).view(torch.int32)), base, tuple(inside))

    def words(self) -> Tensor:
        """Return the storage as int32 words.

        Raises:
            StaleAddressError: the storage was freed or moved.
        """
        words = self.storage.get()
        if words is None:
            raise StaleAddressError(
                f"expected the arena of {len(self.regions)} regions at {self.base:#x}, found it "
                "freed or moved: make a new guard for the new buffers"
            )
        return words

    def data(self, region: BufferRegion) -> Tensor:
        """Return a region's words, without the guard; a trailing part of a word is left out."""
        start = region.address - self.base
        return self.words()[-(-start // _WORD) : (start + region.nbytes) // _WORD]

    def guards(self) -> Iterator["GuardSpan"]:
        """Yield the guard words before the first region and after each one."""
        if self.regions and self.regions[0].guard_bytes:
            first = self.regions[0]
            yield GuardSpan(None, first, 0, (first.address - self.base) // _WORD)
        for region, following in zip_longest(self.regions, self.regions[1:]):
            start = region.address + region.nbytes - self.base
            stop = start + region.guard_bytes
            yield GuardSpan(region, following, -(-start // _WORD), stop // _WORD)


@dataclass(frozen=True)
class GuardSpan:
    """Guard words ``start..stop`` of an arena, with the regions on both sides."""

    before: BufferRegion | None
    after: BufferRegion | None
    start: int
    stop: int

    def place(self, word: int, base: int) -> str:
        """Say how far an overwritten word lies from both neighbours; nobody knows which wrote."""
        sides = []
        if self.before is not None:
            sides.append(f"{word - self.start} words past the end of {_described(self.before)}")
        if self.after is not None:
            distance = (self.after.address - base) // _WORD - word
            sides.append(f"{distance} words before the start of {_described(self.after)}")
        return " and ".join(sides)


def _described(region: BufferRegion) -> str:
    return f"{region.label} ({region.nbytes} bytes at {region.address:#x})"


def fill_guards(arena: Arena) -> None:
    """Write the guard pattern around every region of the arena."""
    for span in arena.guards():
        arena.words()[span.start : span.stop] = GUARD_WORD


def check_guards(arena: Arena) -> None:
    """Compare every guard word of the arena with the pattern; waits for the device.

    Raises:
        CapacityError: a word was overwritten; names field, group and step on both sides, and both
            values.
    """
    spans = [span for span in arena.guards() if span.stop > span.start]
    if not spans:
        return
    index = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    stored = arena.words()
    words = stored[index.to(stored.device)].cpu()
    wrong = (words != GUARD_WORD).nonzero().flatten()
    if wrong.numel() == 0:
        return
    first = int(index[wrong[0]])
    span = next(span for span in spans if span.start <= first < span.stop)
    raise CapacityError(
        f"expected guard word {GUARD_WORD:#x}, found {int(words[wrong[0]]):#x} "
        f"{span.place(first, arena.base)}, {wrong.numel()} words overwritten in all: a write "
        "outside one of them; raise its capacity or fix the kernel"
    )
