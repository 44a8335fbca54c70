"""Guard words and poison: what is written around and into buffers to catch wrong writes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import GUARD_WORD, BufferRegion, CapacityError, LayoutError, StaleAddressError
from dsacp.graph.foreign import WeakTensor

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

    def guards(self) -> Iterator[tuple[BufferRegion, bool, int, int]]:
        """Yield (region, whether the guard lies before it, first word, end word) of each guard."""
        if self.regions and self.regions[0].guard_bytes:
            yield self.regions[0], True, 0, (self.regions[0].address - self.base) // _WORD
        for region in self.regions:
            start = region.address + region.nbytes - self.base
            stop = start + region.guard_bytes
            yield region, False, -(-start // _WORD), stop // _WORD


def fill_guards(arena: Arena) -> None:
    """Write the guard pattern around every region of the arena."""
    for _region, _front, start, stop in arena.guards():
        arena.words()[start:stop] = GUARD_WORD


def check_guards(arena: Arena) -> None:
    """Compare every guard word of the arena with the pattern; waits for the device.

    Raises:
        CapacityError: a word was overwritten; names field, group, step and both values.
    """
    spans = [span for span in arena.guards() if span[3] > span[2]]
    if not spans:
        return
    index = torch.cat([torch.arange(start, stop) for _, _, start, stop in spans])
    stored = arena.words()
    words = stored[index.to(stored.device)].cpu()
    wrong = (words != GUARD_WORD).nonzero().flatten()
    if wrong.numel() == 0:
        return
    first = int(index[wrong[0]])
    region, front, start, stop = next(span for span in spans if span[2] <= first < span[3])
    where = f"{stop - first} words before its start" if front else f"{first - start} words past it"
    raise CapacityError(
        f"expected guard word {GUARD_WORD:#x} around {region.label} ({region.nbytes} bytes at "
        f"{region.address:#x}), found {int(words[wrong[0]]):#x} {where}, {wrong.numel()} words "
        "overwritten in all: a write past the buffer's end; raise its capacity or fix the kernel"
    )
