"""Batches that meet every launch and every compiled variant of a builder once."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from dsacp.core import DraftCapacity
from dsacp.drafting_cache.types import DraftBatch


def warm_up_batches(
    capacity: DraftCapacity, max_model_len: int, max_reqs: int
) -> Iterator[DraftBatch]:
    """Yield batches of requests that have just begun; the last one is idle and leaves no row.

    Args:
        capacity: bounds of the buffers, and the buckets.
        max_model_len: the longest prefill.
        max_reqs: requests that the bound block tables hold.
    """
    limit = min(max_reqs, capacity.max_num_seqs, capacity.max_tokens)
    yield _begun(1, min(capacity.max_tokens, max_model_len))
    # some kernels are compiled for each power of two of requests
    counts = [1 << power for power in range(limit.bit_length())]
    for count in sorted({*counts, limit}, reverse=True):
        batch = _begun(count, 1)
        yield batch
        if count < limit:
            yield replace(batch, num_rejected=None, num_tokens_padded=count + 1)
    query_len = capacity.num_draft_tokens + 1
    for bucket in sorted(capacity.capture_sizes, reverse=True):
        if bucket // query_len <= limit and query_len <= max_model_len:
            yield replace(_begun(bucket // query_len, query_len), bucket=bucket)
    yield _begun(0, 1)


def _begun(count: int, query_len: int) -> DraftBatch:
    lengths = torch.full((count,), query_len, dtype=torch.int32)
    starts = torch.arange(count + 1, dtype=torch.int32) * query_len
    return DraftBatch(count, count * query_len, starts, lengths, torch.zeros_like(lengths))
