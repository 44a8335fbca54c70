"""A named byte range of a persistent buffer, as the guard sees it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from dsacp.core.checks import check_whole
from dsacp.core.errors import AliasError

GUARD_WORD = 0x5AFE_C0DE
"""The int32 pattern written around every buffer; any other value there is a write out of bounds."""


@dataclass(frozen=True)
class BufferRegion:
    """One field of one draft step of one KV group, in bytes.

    ``guard_bytes`` of ``GUARD_WORD`` follow the region at ``address + nbytes``; the guard of the
    region before it, or the arena's first guard, protects its front.

    Raises:
        LayoutError: an address or a byte count is no whole number, or negative.
    """

    group: str
    step: int
    field: str
    address: int
    nbytes: int
    guard_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("address", "nbytes", "guard_bytes"):
            check_whole(f"{name} of {self.label}", getattr(self, name), 0, 2**64 - 1)

    @property
    def end(self) -> int:
        """One past the last byte, the guard included."""
        return self.address + self.nbytes + self.guard_bytes

    @property
    def label(self) -> str:
        """``group/step/field``, as messages print it."""
        return f"{self.group}/step{self.step}/{self.field}"


def check_disjoint(regions: Iterable[BufferRegion]) -> None:
    """Raise ``AliasError`` if two regions share a byte (I5)."""
    # an empty region between two owners would hide them from each other
    filled = (region for region in regions if region.nbytes)
    ordered = sorted(filled, key=lambda region: region.address)
    for left, right in pairwise(ordered):
        if right.address < left.end:
            raise AliasError(
                f"expected disjoint buffers, found {left.label} [{left.address:#x}, {left.end:#x}) "
                f"and {right.label} [{right.address:#x}, {right.end:#x}) sharing "
                f"{min(left.end, right.end) - right.address} bytes: give each owner its own arena"
            )
