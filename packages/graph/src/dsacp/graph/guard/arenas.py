"""The storages of a guard: guard words and poison in all of them."""

from collections.abc import Callable, Iterable

from torch import Tensor

from dsacp.core import BufferRegion, LayoutError
from dsacp.graph.guard.words import POISON_WORD, Arena, check_guards, fill_guards


class GuardedArenas:
    """Every storage that holds regions; each method refuses to work on none.

    Args:
        regions: every field of every step and group.
        storages: what holds them, held weakly; empty where only addresses are watched.

    Attributes:
        poisoned: whether ``poison`` ran.

    Raises:
        LayoutError: storages were given and a region lies in none of them.
    """

    def __init__(self, regions: tuple[BufferRegion, ...], storages: Iterable[Tensor]) -> None:
        self._regions = regions
        self._arenas = tuple(Arena.of(storage, regions) for storage in storages)
        self.poisoned = False
        covered = {region for arena in self._arenas for region in arena.regions}
        for region in regions:
            if self._arenas and region not in covered:
                raise LayoutError(
                    f"expected {region.label} at {region.address:#x} inside one of "
                    f"{len(self._arenas)} arenas, found it in none: pass the owner's arenas too"
                )

    def words(self) -> tuple[Tensor, ...]:
        """Return the storages as int32 words; ``StaleAddressError`` if one is gone."""
        return tuple(arena.words() for arena in self._arenas)

    def need(self, method: str) -> tuple[Arena, ...]:
        """Return the arenas; ``LayoutError`` names ``method`` where there are none."""
        if not self._arenas:
            raise LayoutError(
                f"{method}() needs the arenas of {len(self._regions)} regions, found none: pass "
                "the owner's storages() as GraphGuard(regions, arenas)"
            )
        return self._arenas

    def fill(self) -> None:
        """Write the guard pattern around every region."""
        for arena in self.need("fill_words"):
            fill_guards(arena)

    def check(self) -> None:
        """Raise ``CapacityError`` if a guard word changed; waits for the device."""
        for arena in self.need("check_words"):
            check_guards(arena)

    def poison(self, spared: Callable[[BufferRegion], bool]) -> None:
        """Overwrite every region that is not ``spared``."""
        for arena in self.need("poison"):
            for region in arena.regions:
                if not spared(region):
                    arena.data(region).fill_(POISON_WORD)
        self.poisoned = True
