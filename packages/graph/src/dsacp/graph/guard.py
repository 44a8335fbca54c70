"""The guard that proves the five invariants from a list of buffer regions."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping

from torch import Tensor

from dsacp.core import (
    BufferRegion,
    LayoutError,
    StaleAddressError,
    check_disjoint,
)
from dsacp.graph.alias import check_isolated, check_ownership, short_group
from dsacp.graph.values import check_fresh, check_padding
from dsacp.graph.walk import Found, walk
from dsacp.graph.watched import Watched, check_alive, check_same
from dsacp.graph.words import POISON_WORD, Arena, check_guards, fill_guards


class GraphGuard:
    """Watches addresses, guard words, freshness, padding and isolation of persistent buffers.

    Args:
        regions: every field of every step and group.
        arenas: the storages that hold the regions, held weakly. Without them addresses are
            watched, but guard words and poison are not available.
        generation: the buffers' generation; a graph refuses to replay once it changed.
        inputs: groups (by the part after the last dot) whose regions every step may read: no step
            owns them, and ``poison`` spares them.

    Raises:
        AliasError: two regions share a byte (I5).
        LayoutError: arenas were given and a region lies in none of them.
    """

    def __init__(
        self,
        regions: Iterable[BufferRegion],
        arenas: Iterable[Tensor] = (),
        generation: Callable[[], int] | None = None,
        inputs: Collection[str] = ("staging",),
    ) -> None:
        self.regions = tuple(regions)
        check_disjoint(self.regions)
        self._inputs = frozenset(inputs)
        self._generation = generation
        self._by_address = sorted(self.regions, key=lambda region: region.address)
        self._starts = [region.address for region in self._by_address]
        self._arenas = tuple(Arena.of(storage, self.regions) for storage in arenas)
        self._watched: dict[str, Watched] = {}
        covered = {region for arena in self._arenas for region in arena.regions}
        for region in self.regions:
            if self._arenas and region not in covered:
                raise LayoutError(
                    f"expected {region.label} at {region.address:#x} inside one of "
                    f"{len(self._arenas)} arenas, found it in none: pass the owner's arenas too"
                )

    @property
    def arenas(self) -> tuple[Tensor, ...]:
        """The storages as int32 words; the guard does not keep them alive.

        Raises:
            StaleAddressError: one was freed or moved.
        """
        return tuple(arena.words() for arena in self._arenas)

    def generation(self) -> int | None:
        """Return the buffers' generation now, None when there is no such thing."""
        return None if self._generation is None else self._generation()

    def region_at(self, address: int) -> BufferRegion | None:
        """Return the region whose data holds ``address``."""
        index = bisect_right(self._starts, address) - 1
        region = self._by_address[index] if index >= 0 else None
        inside = region is not None and address < region.address + max(region.nbytes, 1)
        return region if inside else None

    def label_of(self, address: int) -> str | None:
        """Name what lies at an address: a region, or a watched tensor that starts there."""
        region = self.region_at(address)
        if region is not None:
            return region.label
        return next((key for key, seen in self._watched.items() if seen.address == address), None)

    def watch(self, metadata: object, label: str = "metadata") -> None:
        """Remember address, shape and stride of every tensor that ``metadata`` reaches.

        A bucket or a step that has its own metadata needs its own ``label``.

        Raises:
            AliasError: a step's tensor lies in the buffer of another step or group (I5).
            CapacityError: a tensor reaches past its buffer's end (I3).
        """
        for found in walk(metadata, label):
            self._check_owner(found)
            self._watched[found.path] = Watched.of(found.tensor)

    def check(self, metadata: object | None = None, label: str = "metadata") -> None:
        """Check guard words, watched storages and, if given, new metadata against the watched.

        Waits for the device: for tests and debugging, not for the hot path.

        Raises:
            StaleAddressError: a tensor moved, changed its geometry, appeared, or was freed (I1).
            CapacityError: a guard word was overwritten (I3).
            AliasError: a step's tensor lies in another step's buffer (I5).
        """
        if metadata is not None:
            self._check_metadata(metadata, label)
        for path, seen in self._watched.items():
            check_alive(path, seen)
        self.check_words()

    def fill_words(self) -> None:
        """Write the guard pattern around every region."""
        for arena in self._arenas:
            fill_guards(arena)

    def check_words(self) -> None:
        """Raise ``CapacityError`` if a guard word changed (I3)."""
        for arena in self._arenas:
            check_guards(arena)

    def poison(self) -> None:
        """Overwrite every region but inputs with poison: what is not rewritten shows (I2)."""
        for arena in self._arenas:
            for region in arena.regions:
                if not self._is_input(region):
                    arena.data(region).fill_(POISON_WORD)

    def check_fresh(
        self,
        metadata: object,
        rows: Mapping[str, int] | None = None,
        skip: Collection[str] = ("banks",),
    ) -> None:
        """Raise ``StaleValueError`` if a guarded tensor of ``metadata`` still holds poison (I2).

        Args:
            metadata: what was built since ``poison``.
            rows: leading rows to look at, by field name; all rows of other fields.
            skip: attributes that hold whole buffers beside the rows of this batch.
        """
        for found in walk(metadata, "metadata", skip):
            region = self.region_at(found.tensor.data_ptr())
            if region is not None and not self._is_input(region):
                limit = None if rows is None else rows.get(region.field)
                check_fresh(region.label, found.tensor[:limit])

    def check_padding(
        self, fields: Mapping[str, Tensor], expected: Mapping[str, float | Tensor]
    ) -> None:
        """Raise ``PaddingError`` if padding rows are not inert (I4).

        Args:
            fields: the rows past the real batch, by field name.
            expected: what every such row holds, a number or a tensor that broadcasts.
        """
        for name, tensor in fields.items():
            label = self.label_of(tensor.data_ptr()) if tensor.numel() else None
            check_padding(label or name, name, tensor, expected)

    def check_isolated(self, owners: Mapping[str, object], shared: object = ()) -> None:
        """Raise ``AliasError`` if two owners' metadata share a byte (I5).

        Args:
            owners: metadata by owner's name, such as "eager" and "graph".
            shared: tensors that all may read, such as block tables.
        """
        check_isolated(owners, shared, self.label_of)

    def _check_owner(self, found: Found) -> None:
        region = self.region_at(found.tensor.data_ptr())
        if region is not None and not self._is_input(region):
            check_ownership(found, region)

    def _is_input(self, region: BufferRegion) -> bool:
        return short_group(region) in self._inputs

    def _check_metadata(self, metadata: object, label: str) -> None:
        found = {item.path: item for item in walk(metadata, label)}
        for path, item in found.items():
            self._check_owner(item)
            check_same(path, self._watched.get(path), item.tensor, self.label_of)
        prefix = tuple(f"{label}{mark}" for mark in (".", "["))
        for path in self._watched:
            if path.startswith(prefix) and path not in found:
                raise StaleAddressError(
                    f"expected {path} as captured, found no such tensor: the metadata changed its "
                    "structure; build it with the captured configuration"
                )
