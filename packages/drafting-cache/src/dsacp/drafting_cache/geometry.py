"""Row and token counts of every step of a batch: integers only."""

from dataclasses import dataclass

from torch import Tensor

from dsacp.core import CapacityError, DraftCapacity, LayoutError, round_up
from dsacp.drafting_cache.types import DraftBatch


@dataclass(frozen=True)
class StepGeometry:
    """Shape of one step: request rows, the host's padded tokens, queries of a padded request."""

    rows: int
    tokens: int
    pad_query_len: int


Geometries = tuple[StepGeometry, ...]


def bucket_geometry(capacity: DraftCapacity, bucket: int, step: int) -> StepGeometry:
    """Return the shape that ``step`` has in a captured bucket."""
    if bucket not in capacity.capture_sizes:
        raise CapacityError(
            f"expected a bucket of {list(capacity.capture_sizes)}, found {bucket}: "
            "capture that size, or pass bucket=None to run eager"
        )
    rows = capacity.rows(step, bucket)
    query_len = capacity.num_draft_tokens + 1 if step == 0 else 1
    return StepGeometry(rows, bucket if step == 0 else rows, query_len)


def bucket_geometries(capacity: DraftCapacity, bucket: int, count: int) -> Geometries:
    """Return the shapes of the first ``count`` steps in a captured bucket."""
    return tuple(bucket_geometry(capacity, bucket, step) for step in range(count))


def first_geometry(
    capacity: DraftCapacity, batch: DraftBatch, step: int, dummy: bool
) -> StepGeometry:
    """Return the shape of the step that ``batch`` itself describes."""
    if batch.bucket is not None:
        geometry = bucket_geometry(capacity, batch.bucket, step)
    else:
        geometry = _eager_geometry(capacity, batch, step, dummy)
    _check(capacity, batch, geometry, step)
    return geometry


def later_geometry(capacity: DraftCapacity, batch: DraftBatch) -> StepGeometry:
    """Return the shape of a one-token-a-request step that follows an eager ``batch``."""
    rows = round_up(batch.num_reqs, capacity.tp_size)
    geometry = StepGeometry(rows, rows, 1)
    _check_room(capacity, geometry, 1)
    return geometry


def check_advanced(batch: DraftBatch) -> None:
    """Raise ``LayoutError`` unless a later step has one token a request and nothing rejected."""
    if batch.num_tokens != batch.num_reqs or batch.num_rejected is not None:
        found = "none" if batch.num_rejected is None else "some"
        raise LayoutError(
            f"expected one token a request and no num_rejected in a draft step >= 1, found "
            f"{batch.num_tokens} tokens of {batch.num_reqs} requests and {found}: advance the "
            "batch first, or build all steps from step 0's"
        )


def _eager_geometry(
    capacity: DraftCapacity, batch: DraftBatch, step: int, dummy: bool
) -> StepGeometry:
    if step > 0 and batch.num_tokens == batch.num_reqs and batch.num_reqs_padded is None:
        return later_geometry(capacity, batch)
    tokens = batch.num_tokens_padded or batch.num_tokens
    # FIA wants query_start_loc[-1] == T: one dummy request takes what the host padded.
    extra = 1 if dummy and tokens > batch.num_tokens else 0
    rows = batch.num_reqs_padded or batch.num_reqs + extra
    uniform = batch.num_reqs > 0 and batch.num_tokens % batch.num_reqs == 0
    query_len = batch.num_tokens // batch.num_reqs if uniform else capacity.num_draft_tokens + 1
    return StepGeometry(rows, tokens, query_len)


def _check_room(capacity: DraftCapacity, geometry: StepGeometry, step: int) -> None:
    max_rows = capacity.max_reqs if step == 0 else capacity.max_rows
    max_tokens = capacity.max_tokens if step == 0 else capacity.max_rows
    tokens = round_up(geometry.tokens, capacity.tp_size)
    if geometry.rows > max_rows or tokens > max_tokens:
        raise CapacityError(
            f"step {step} needs {geometry.rows} requests and {tokens} tokens, its buffers hold "
            f"{max_rows} and {max_tokens}: raise max_num_seqs, max_num_batched_tokens or the "
            "largest capture size"
        )


def _check(capacity: DraftCapacity, batch: DraftBatch, geometry: StepGeometry, step: int) -> None:
    _check_room(capacity, geometry, step)
    if batch.num_reqs > geometry.rows or batch.num_tokens > geometry.tokens:
        raise CapacityError(
            f"step {step} was captured for {geometry.rows} requests and {geometry.tokens} tokens, "
            f"the batch has {batch.num_reqs} and {batch.num_tokens}: use a larger bucket, or none"
        )
    if batch.num_reqs < 0 or batch.query_start_loc.numel() <= batch.num_reqs:
        raise LayoutError(
            f"expected query_start_loc of at least {batch.num_reqs + 1} entries, found "
            f"{batch.query_start_loc.numel()}"
        )
    _check_entries("seq_lens", batch.seq_lens, batch.num_reqs)
    if batch.num_rejected is not None:
        _check_entries("num_rejected", batch.num_rejected, batch.num_reqs)


def _check_entries(name: str, tensor: Tensor, count: int) -> None:
    if tensor.numel() < count:
        raise LayoutError(f"expected {name} of at least {count} entries, found {tensor.numel()}")
