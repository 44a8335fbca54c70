"""Row and token counts of every step of a batch: integers only."""

from dataclasses import dataclass, replace

from dsacp.core import CapacityError, DraftCapacity, LayoutError, check_whole, round_up
from dsacp.drafting_cache.types import DraftBatch


@dataclass(frozen=True)
class StepGeometry:
    """Shape of a step: request rows, the framework's padded tokens, a padded request's queries."""

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
        _check_said(batch, geometry)
    elif step > 0:
        geometry = _advanced_geometry(capacity, batch)
    else:
        geometry = _eager_geometry(capacity, batch, dummy)
    _check(capacity, batch, geometry, step)
    if step == 0:
        _check_end(capacity, batch, geometry, dummy)
    return geometry


def within_table(geometry: StepGeometry, table_rows: int) -> StepGeometry:
    """Return a step as its metadata shows it: no field has more rows than the block tables.

    The launch writes all rows; those past the tables are padding that repeats the last start.
    """
    return replace(geometry, rows=min(geometry.rows, table_rows))


def check_counts(batch: DraftBatch) -> None:
    """Raise ``LayoutError`` unless every count of a batch is a whole number, 0 or more."""
    for name in ("num_reqs", "num_tokens"):
        check_whole(name, getattr(batch, name), 0)
    for name in ("bucket", "num_tokens_padded", "num_reqs_padded"):
        value = getattr(batch, name)
        if value is not None:
            check_whole(name, value, 0)


def later_geometry(capacity: DraftCapacity, batch: DraftBatch) -> StepGeometry:
    """Return the shape of the one-token-a-request steps that follow an eager step 0.

    Their rows are what the framework pads to: as in a bucket, step 0's padded tokens in
    ``layout="tokens"``, padded requests otherwise, and there too where a prefill's tokens outgrow
    the buffers of these steps. A count that the framework does not say is the batch's own.
    """
    tokens, rows = batch.num_tokens_padded, batch.num_reqs_padded
    name, count = "num_reqs_padded", batch.num_reqs if rows is None else rows
    # max_rows is a multiple of tp, so that what it holds it holds rounded up
    fits = rows is None or (tokens or 0) <= capacity.max_rows
    if capacity.layout == "tokens" and tokens is not None and fits:
        name, count = "num_tokens_padded", tokens
    geometry = _one_token_geometry(capacity, count)
    if count < batch.num_reqs or (geometry.rows > capacity.max_rows and (tokens or rows)):
        raise CapacityError(
            f"steps >= 1 need one row a request: {batch.num_reqs} at least, and {count} by "
            f"{name}, their buffers hold {capacity.max_rows}: pass num_reqs_padded between the "
            "two, or raise max_num_seqs or the largest capture size"
        )
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


def _eager_geometry(capacity: DraftCapacity, batch: DraftBatch, dummy: bool) -> StepGeometry:
    said_tokens, said_rows = batch.num_tokens_padded, batch.num_reqs_padded
    tokens = batch.num_tokens if said_tokens is None else said_tokens
    # FIA wants query_start_loc[-1] == T: one dummy request takes what the framework padded.
    extra = 1 if dummy and tokens > batch.num_tokens else 0
    rows = batch.num_reqs + extra if said_rows is None else said_rows
    uniform = batch.num_reqs > 0 and batch.num_tokens % batch.num_reqs == 0
    query_len = batch.num_tokens // batch.num_reqs if uniform else capacity.num_draft_tokens + 1
    return StepGeometry(rows, tokens, query_len)


def _advanced_geometry(capacity: DraftCapacity, batch: DraftBatch) -> StepGeometry:
    """Return the shape of a step >= 1 on its own, where rows are tokens: either count says both."""
    tokens, rows = batch.num_tokens_padded, batch.num_reqs_padded
    said = [count for count in (tokens, rows) if count is not None]
    geometry = _one_token_geometry(capacity, min(said, default=batch.num_reqs))
    if said and _one_token_geometry(capacity, max(said)) != geometry:
        raise LayoutError(
            f"expected as many padded tokens as padded requests in a draft step >= 1, which has "
            f"one token a request, found num_tokens_padded={tokens} and num_reqs_padded={rows}: "
            "pass this step's own counts, or build all steps from step 0's"
        )
    return geometry


def _one_token_geometry(capacity: DraftCapacity, count: int) -> StepGeometry:
    rows = round_up(count, capacity.tp_size)
    return StepGeometry(rows, rows, 1)


def _check_said(batch: DraftBatch, geometry: StepGeometry) -> None:
    """Raise ``LayoutError`` where padded counts contradict the bucket, which says them itself."""
    for name, held in (("num_tokens_padded", geometry.tokens), ("num_reqs_padded", geometry.rows)):
        said = getattr(batch, name)
        if said is not None and said != held:
            raise LayoutError(
                f"expected {name}={held} as in bucket {batch.bucket}, found {said}: pass the "
                "bucket alone, or the counts alone to run eager"
            )


def _check_end(
    capacity: DraftCapacity, batch: DraftBatch, geometry: StepGeometry, dummy: bool
) -> None:
    """Raise unless the starts of step 0 can end where its padded tokens do.

    A bucket's do for batches of its own kind. Elsewhere FIA wants a dummy request to take what the
    framework padded, and that needs a row.
    """
    if batch.bucket is not None:
        if not capacity.admits(batch.bucket, batch.num_tokens, batch.num_reqs):
            kind = capacity.kind(batch.bucket)
            raise LayoutError(
                f"expected a batch of the kind {kind} in bucket {batch.bucket}, {kind.query_len} "
                f"tokens a request, found {batch.num_tokens} tokens of {batch.num_reqs} requests: "
                "pass bucket=None to run it eager"
            )
    elif dummy and geometry.tokens > batch.num_tokens and geometry.rows == batch.num_reqs:
        raise CapacityError(
            f"{batch.num_reqs} requests end at {batch.num_tokens} of {geometry.tokens} padded "
            f"tokens, num_reqs_padded={geometry.rows} leaves no row for a dummy request that takes "
            f"the rest: pass num_reqs_padded={geometry.rows + 1}, or "
            f"num_tokens_padded={batch.num_tokens}"
        )


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
        made, do = "was captured for", "use a larger bucket, or none"
        if batch.bucket is None:
            made, do = "is padded to", "pad to the batch's own counts or more"
        raise CapacityError(
            f"step {step} {made} {geometry.rows} requests and {geometry.tokens} tokens, the batch "
            f"has {batch.num_reqs} and {batch.num_tokens}: {do}"
        )
