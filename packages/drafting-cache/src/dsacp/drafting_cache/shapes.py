"""The shapes of a builder's batches, planned once each."""

from functools import lru_cache, partial

from dsacp.core import INT32_MAX, CapacityError, check_whole
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.geometry import (
    Geometries,
    StepGeometry,
    bucket_geometries,
    check_counts,
    first_geometry,
    later_geometry,
)
from dsacp.drafting_cache.types import DraftBatch

Counts = tuple[int, int, int | None, int | None, int | None]
CACHED_COUNTS = 1024
"""Batch sizes whose shapes are kept, a few hundred bytes each."""


class Shapes:
    """Row and token counts of every step by the builder's configuration.

    Args:
        config: what the builder was made for.
    """

    def __init__(self, config: BuilderConfig) -> None:
        self._config = config
        self._dummy = config.padding == "dummy"
        self._bucket = lru_cache(maxsize=CACHED_COUNTS)(partial(bucket_geometries, config.capacity))
        self._one = lru_cache(maxsize=CACHED_COUNTS)(self._make_one)
        self._all = lru_cache(maxsize=CACHED_COUNTS)(self._make_all)

    def one(self, batch: DraftBatch, step: int) -> StepGeometry:
        """Return the shape of the step that ``batch`` itself describes."""
        check_counts(batch)
        return self._one(_counts(batch), step)

    def all(self, batch: DraftBatch, num_steps: int | None) -> Geometries:
        """Return the shapes of steps 0..num_steps-1 of step 0's batch."""
        check_counts(batch)
        return self._all(_counts(batch), self._count(num_steps))

    def bucket(self, bucket: int, num_steps: int | None) -> Geometries:
        """Return the shapes of a captured bucket."""
        check_whole("bucket", bucket, -INT32_MAX)
        return self._bucket(bucket, self._count(num_steps))

    def _make_one(self, counts: Counts, step: int) -> StepGeometry:
        return first_geometry(self._config.capacity, _batch(counts), step, self._dummy)

    def _make_all(self, counts: Counts, num_steps: int) -> Geometries:
        batch = _batch(counts)
        first = self._make_one(counts, 0)
        if batch.bucket is not None:
            return self._bucket(batch.bucket, num_steps)
        if num_steps == 1:
            return (first,)
        return (first, *[later_geometry(self._config.capacity, batch)] * (num_steps - 1))

    def _count(self, num_steps: int | None) -> int:
        held = self._config.num_steps
        count = held if num_steps is None else num_steps
        check_whole("num_steps", count, -INT32_MAX)
        if not 1 <= count <= held:
            raise CapacityError(
                f"expected 1..{held} steps, found {count}: dynamic K may only draft fewer tokens "
                "than the builder was made for"
            )
        return count


def _counts(batch: DraftBatch) -> Counts:
    """Return what shapes follow from; tensors would keep memory alive in a cache."""
    return (
        batch.num_reqs,
        batch.num_tokens,
        batch.bucket,
        batch.num_tokens_padded,
        batch.num_reqs_padded,
    )


def _batch(counts: Counts) -> DraftBatch:
    reqs, tokens, bucket, padded_tokens, padded_reqs = counts
    return DraftBatch(
        reqs,
        tokens,
        bucket=bucket,
        num_tokens_padded=padded_tokens,
        num_reqs_padded=padded_reqs,
    )
