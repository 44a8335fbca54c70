"""Triton kernel of rank-local metadata: every row is independent, so there is no scan."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs

BLOCK = 256


@triton.jit
def clip(value, low, high):
    """Clamp i32 values; ``tl.clamp`` takes floats only."""
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def visible_length(begin, end, length, low, high, CAUSAL: tl.constexpr):
    """Return the KV length that the owner of tokens ``[low, high)`` sees of a request."""
    local_end = clip(end, low, high)
    visible = length
    if CAUSAL:
        visible = tl.maximum(length - (end - local_end), 0)
    return tl.where((local_end > clip(begin, low, high)) & (length > 0), visible, 0)


@triton.jit(
    do_not_specialize=[
        "query_start_loc",
        "seq_lens",
        "out_starts",
        "out_lens",
        "out_first",
        "rows",
        "low",
        "high",
    ]
)
def _local_metadata_kernel(
    query_start_loc,
    seq_lens,
    out_starts,
    out_lens,
    out_first,
    rows,
    low,
    high,
    CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    begin = tl.load(query_start_loc + row, mask=row <= rows, other=0)
    end = tl.load(query_start_loc + row + 1, mask=mask, other=0)
    length = tl.load(seq_lens + row, mask=mask, other=0)
    tl.store(out_starts + row, clip(begin, low, high) - low, mask=row <= rows)
    visible = visible_length(begin, end, length, low, high, CAUSAL)
    tl.store(out_lens + row, visible, mask=mask)
    tl.store(out_first + row, tl.maximum(length - (end - begin), 0), mask=mask)


def local_metadata(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out_query_start_loc: Tensor,
    out_seq_lens: Tensor,
    out_start_pos: Tensor,
    shard_start: int,
    shard_end: int,
    causal: bool,
) -> None:
    """Launch the kernel; same contract as the reference."""
    rows = seq_lens.numel()
    programs = triton.cdiv(rows + 1, BLOCK)
    check_programs("local_metadata", programs, seq_lens.device.type)
    _local_metadata_kernel[(programs,)](
        query_start_loc,
        seq_lens,
        out_query_start_loc,
        out_seq_lens,
        out_start_pos,
        rows,
        shard_start,
        shard_end,
        CAUSAL=causal,
        BLOCK=BLOCK,
    )
