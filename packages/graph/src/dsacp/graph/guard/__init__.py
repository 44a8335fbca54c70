"""The guard that proves the five invariants from a list of buffer regions."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping

from torch import Tensor

from dsacp.core import BufferRegion, LayoutError, Uncopied, check_disjoint
from dsacp.graph.guard.alias import check_isolated, check_ownership, short_group
from dsacp.graph.guard.arenas import GuardedArenas
from dsacp.graph.guard.values import check_fresh, check_padding
from dsacp.graph.guard.walk import Found, walk
from dsacp.graph.guard.watched import Watched, check_alive, check_complete, check_same


class GraphGuard(Uncopied):
    """Watches addresses, guard words, freshness, padding and isolation of persistent buffers.

    Args:
        regions: every field of every step and group.
        arenas: the storages that hold the regions, held weakly. Without them ``watch`` and
            ``check_addresses`` work, and what reads or writes guard words and poison is refused.
        generation: the buffers' generation; a graph refuses to replay once it changed.
        inputs: groups (by the part after the last dot) whose regions every step may read: no step
            owns them, and ``poison`` spares them.

    Raises:
        AliasError: two regions share a byte (I5).
        LayoutError: arenas were given and a region lies in none of them, or ``generation`` cannot
            be called.
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
        if generation is not None and not callable(generation):
            raise LayoutError(
                f"expected generation as a function without arguments, found {generation!r}: pass "
                "lambda: builder.generation"
            )
        self._inputs = frozenset(inputs)
        self._generation = generation
        self._by_address = sorted(self.regions, key=lambda region: region.address)
        self._starts = [region.address for region in self._by_address]
        self._arenas = GuardedArenas(self.regions, arenas)
        self._watched: dict[str, Watched] = {}

    @property
    def arenas(self) -> tuple[Tensor, ...]:
        """The storages as int32 words; the guard does not keep them alive.

        Raises:
            StaleAddressError: one was freed or moved.
        """
        return self._arenas.words()

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
            LayoutError: the guard has no arenas, see ``check_addresses``.
        """
        self._arenas.need("check")
        if metadata is not None or self._watched:
            self.check_addresses(metadata, label)
        self.check_words()

    def check_addresses(self, metadata: object | None = None, label: str = "metadata") -> None:
        """Do what ``check`` does but for the guard words; needs no arenas.

        Raises:
            LayoutError: nothing is watched and no metadata was given.
        """
        if metadata is None and not self._watched:
            raise LayoutError(
                "expected something to check, found nothing watched and no metadata: call watch() "
                "at capture"
            )
        if metadata is not None:
            self._check_metadata(metadata, label)
        for path, seen in self._watched.items():
            check_alive(path, seen)

    def fill_words(self) -> None:
        """Write the guard pattern around every region; ``LayoutError`` without arenas."""
        self._arenas.fill()

    def check_words(self) -> None:
        """Raise ``CapacityError`` if a guard word changed (I3); ``LayoutError`` without arenas."""
        self._arenas.check()

    def poison(self) -> None:
        """Overwrite every region but inputs with poison: what is not rewritten shows (I2).

        Raises:
            LayoutError: the guard has no arenas.
        """
        self._arenas.poison(spared=self._is_input)

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

        Raises:
            LayoutError: nothing was poisoned, or no tensor of ``metadata`` lies in a region.
        """
        if not self._arenas.poisoned:
            raise LayoutError("expected poison in the buffers, found none: call poison() first")
        looked_at = 0
        for found in walk(metadata, "metadata", skip):
            region = self.region_at(found.tensor.data_ptr())
            if region is not None and not self._is_input(region):
                limit = None if rows is None else rows.get(region.field)
                check_fresh(region.label, found.tensor[:limit])
                looked_at += 1
        if not looked_at:
            raise LayoutError(
                f"expected metadata in the guard's {len(self.regions)} regions, found no tensor of "
                "it there: pass what was built into these buffers"
            )

    def check_padding(
        self, fields: Mapping[str, Tensor], expected: Mapping[str, float | Tensor]
    ) -> None:
        """Raise ``PaddingError`` if padding rows are not inert (I4).

        Args:
            fields: the rows past the real batch, by field name.
            expected: what every such row holds, a number or a tensor that broadcasts.

        Raises:
            LayoutError: no field was given, or one without its expected value.
        """
        if not fields:
            raise LayoutError("expected fields to check, found none: pass each field's padded rows")
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
        check_complete(label, self._watched, found)
