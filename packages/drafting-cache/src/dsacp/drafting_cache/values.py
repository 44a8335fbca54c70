"""Values of a batch that the host can read: starts and lengths against the announced counts."""

from itertools import pairwise

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.drafting_cache.types import DraftBatch

CHEAP_REQUESTS = 64
"""Requests up to which host tensors are read on every build: 1 to 3 us. More cost 20 and above."""


def check_values(
    batch: DraftBatch,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    query_len: int | None,
    debug: bool,
) -> None:
    """Raise ``LayoutError`` where starts or lengths contradict the batch's counts.

    Args:
        batch: the counts.
        query_start_loc: int32 [>= num_reqs + 1], the batch's or the bound one.
        seq_lens: int32 [>= num_reqs], likewise.
        query_len: query tokens that every request must have, as a bucket and a step >= 1 want it;
            None where requests differ.
        debug: read device tensors and long ones too, which waits for the device.
    """
    starts = _read(query_start_loc, batch.num_reqs + 1, debug)
    if starts is not None:
        _check_starts(starts, batch, query_len)
    lengths = _read(seq_lens, batch.num_reqs, debug)
    if lengths and min(lengths) < 0:
        raise LayoutError(
            f"expected seq_lens >= 0, found {min(lengths)} of request "
            f"{lengths.index(min(lengths))}: pass 0 for a request without tokens"
        )


def check_bound_count(batch: DraftBatch, num_reqs: Tensor) -> None:
    """Raise ``LayoutError`` unless the framework's bound count is the batch's; waits for it."""
    held = _read(num_reqs, 1, debug=True)
    if held != [batch.num_reqs]:
        raise LayoutError(
            f"expected bound num_reqs={batch.num_reqs} as the batch has, found {held}: write the "
            "bound inputs before the build"
        )


def _check_starts(starts: list[int], batch: DraftBatch, query_len: int | None) -> None:
    if query_len is not None and starts == list(range(0, batch.num_tokens + 1, query_len)):
        return
    if (starts[0], starts[-1]) != (0, batch.num_tokens):
        raise LayoutError(
            f"expected query_start_loc from 0 to num_tokens={batch.num_tokens} over "
            f"{batch.num_reqs} requests, found {starts[0]} to {starts[-1]}: announce the tokens "
            "that the starts hold"
        )
    for request, (begin, end) in enumerate(pairwise(starts)):
        if end < begin:
            raise LayoutError(
                f"expected query_start_loc that never falls, found {begin} and then {end} at "
                f"request {request}: pass the running sum of query lengths"
            )
        if query_len not in (None, end - begin):
            raise LayoutError(
                f"expected uniform({query_len}) requests of {query_len} tokens each, found "
                f"{end - begin} tokens of request {request}: pass bucket=None to run step 0 "
                "eager; a step >= 1 has one token a request"
            )


def _read(tensor: Tensor, count: int, debug: bool) -> list[int] | None:
    """Return the first entries, or None where that would wait or cost too much."""
    if not debug and not (count <= CHEAP_REQUESTS + 1 and tensor.is_cpu):
        return None
    # a mode that forbids host syncs means device tensors; debug waits on purpose
    with torch._C.DisableTorchFunction():
        whole = tensor if tensor.numel() == count else tensor[:count]
        values: list[int] = whole.tolist()
    return values
