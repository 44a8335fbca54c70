"""The shapes of a builder's batches, planned once each."""

from functools import lru_cache, partial

from dsacp.core import CapacityError
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.geometry import (
    Geometries,
    StepGeometry,
    bucket_geometries,
    first_geometry,
    later_geometry,
)
from dsacp.drafting_cache.types import DraftBatch

CACHED_BUCKETS = 1024


class Shapes:
    """Row and token counts of every step by the builder's configuration.

    Args:
        config: what the builder was made for.
    """

    def __init__(self, config: BuilderConfig) -> None:
        self._config = config
        self._dummy = config.padding == "dummy"
        self._bucket = lru_cache(maxsize=CACHED_BUCKETS)(
            partial(bucket_geometries, config.capacity)
        )

    def one(self, batch: DraftBatch, step: int) -> StepGeometry:
        """Return the shape of the step that ``batch`` itself describes."""
        return first_geometry(self._config.capacity, batch, step, self._dummy)

    def all(self, batch: DraftBatch, num_steps: int | None) -> Geometries:
        """Return the shapes of steps 0..num_steps-1 of step 0's batch."""
        count = self._count(num_steps)
        first = self.one(batch, 0)
        if batch.bucket is not None:
            return self._bucket(batch.bucket, count)
        if count == 1:
            return (first,)
        return (first, *[later_geometry(self._config.capacity, batch)] * (count - 1))

    def bucket(self, bucket: int, num_steps: int | None) -> Geometries:
        """Return the shapes of a captured bucket."""
        return self._bucket(bucket, self._count(num_steps))

    def _count(self, num_steps: int | None) -> int:
        held = self._config.num_steps
        count = held if num_steps is None else num_steps
        if not 1 <= count <= held:
            raise CapacityError(
                f"expected 1..{held} steps, found {count}: dynamic K may only draft fewer tokens "
                "than the builder was made for"
            )
        return count
