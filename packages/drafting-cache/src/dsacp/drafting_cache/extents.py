"""How far each step's buffers are in use, so that a smaller batch cleans what it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsacp.core import DraftCapacity, round_up
from dsacp.drafting_cache.geometry import StepGeometry

UNKNOWN = -1


@dataclass(frozen=True)
class Extent:
    """Rows and tokens that a step has written, and the start that repeats after them."""

    rows: int
    tokens: int
    last_start: int


@dataclass(frozen=True)
class Tail:
    """What one step must clean: rows and tokens ``[from, to)``."""

    rows_from: int
    rows_to: int
    tokens_from: int
    tokens_to: int
    last_start: int


class Extents:
    """Host-side bookkeeping of one generation of buffers."""

    def __init__(self, capacity: DraftCapacity) -> None:
        self._capacity = capacity
        self._used: dict[int, Extent] = {}

    def match(self, wanted: Sequence[Extent], first_step: int) -> bool:
        """Return whether the buffers are in use exactly as far as a batch to come wants."""
        used = self._used.get
        for step, new in enumerate(wanted, first_step):
            old = used(step)
            # the same object for the same batch shape, compared in full only when it is another
            if old is not new and old != new:
                return False
        return True

    def tails(self, wanted: Sequence[Extent], first_step: int) -> list[Tail] | None:
        """Return the tails to clean before a batch, or None; ``adopt`` its extents afterwards.

        Starts repeat to the end of their buffer, so they are rewritten whenever the last one
        changes: the global one with the batch, the local one with the token count too. Tokens
        only when there are fewer than before.
        """
        tails, dirty = [], False
        for step, new in enumerate(wanted, first_step):
            rows, _ = self._bounds(step)
            old = self._get(step)
            same_ends = (old.last_start, old.tokens) == (new.last_start, new.tokens)
            moved = old.rows > new.rows or not same_ends
            rows_to = rows if moved else new.rows
            tokens_to = max(old.tokens, new.tokens)
            dirty |= (moved and new.rows < rows) or tokens_to > new.tokens
            tails.append(Tail(new.rows, rows_to, new.tokens, tokens_to, new.last_start))
        return tails if dirty else None

    def adopt(self, wanted: Sequence[Extent], first_step: int) -> None:
        """Note how far a batch uses each step's buffers."""
        self._used.update(enumerate(wanted, first_step))

    def grow(self, rows: int, tokens: int, step: int) -> None:
        """Note a write that was not staged, such as the warm-up of a larger bucket."""
        old = self._get(step)
        if rows > old.rows or tokens > old.tokens:
            self._used[step] = Extent(max(rows, old.rows), max(tokens, old.tokens), UNKNOWN)

    def _get(self, step: int) -> Extent:
        """At first everything counts as used, so that the first batch cleans the rest."""
        used = self._used.get(step)
        return Extent(*self._bounds(step), UNKNOWN) if used is None else used

    def _bounds(self, step: int) -> tuple[int, int]:
        capacity = self._capacity
        if step == 0:
            return capacity.max_reqs, capacity.max_tokens
        return capacity.max_rows, capacity.max_rows


def wanted_extents(
    num_reqs: int,
    num_tokens: int,
    geometries: Sequence[StepGeometry],
    tp_size: int,
    dummy: bool,
) -> tuple[Extent, ...]:
    """Return each step's extent; what its starts end with is known without the device."""
    counts = [num_tokens, *(num_reqs for _ in geometries[1:])]
    return tuple(
        Extent(
            geometry.rows,
            round_up(geometry.tokens, tp_size),
            geometry.tokens if dummy and geometry.rows > num_reqs else count,
        )
        for geometry, count in zip(geometries, counts, strict=True)
    )
