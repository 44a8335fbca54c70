"""Triton kernel of the compressor's rows: one program a block of output rows."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.dspark_indices.triton import power_shift

ROWS_PER_PROGRAM = 16


@triton.jit
def _group(position, RATIO: tl.constexpr, SHIFT: tl.constexpr):
    """Divide a position, rounding down, by a shift where the divisor is a power of two."""
    if SHIFT >= 0:
        group = position >> SHIFT
    else:
        group = position // RATIO
    return group


@triton.jit(
    do_not_specialize=[
        "query_start_loc",
        "start_pos",
        "seq_lens",
        "block_table",
        "table_stride",
        "out_slots",
        "out_positions",
        "out_requests",
        "num_reqs",
        "num_rows",
        "columns",
        "table_rows",
    ]
)
def _compressor_rows_kernel(
    query_start_loc,
    start_pos,
    seq_lens,
    block_table,
    table_stride,
    cos_table,
    sin_table,
    out_slots,
    out_positions,
    out_requests,
    out_cos,
    out_sin,
    num_reqs,
    num_rows,
    columns,
    table_rows,
    HAS_LENGTHS: tl.constexpr,
    PAIRS: tl.constexpr,
    RATIO: tl.constexpr,
    RATIO_SHIFT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_SHIFT: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
    BLOCK_REQS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    req = tl.arange(0, BLOCK_REQS)
    real = req < num_reqs
    begin = tl.load(query_start_loc + req, mask=real, other=0)
    end = tl.load(query_start_loc + 1 + req, mask=real, other=0)
    start = tl.load(start_pos + req, mask=real, other=-1)
    active = (start >= 0) & (end > begin)
    if HAS_LENGTHS:
        active = active & (tl.load(seq_lens + req, mask=real, other=0) > 0)
    start = tl.where(active, start, 0)
    last = tl.where(active, start + end - begin, 0)
    count = _group(last, RATIO, RATIO_SHIFT) - _group(start, RATIO, RATIO_SHIFT)
    ends = tl.cumsum(count, 0)

    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stored = row < num_rows
    # The owner of a row is the number of requests that end at or before it.
    before = ((ends[None, :] <= row[:, None]) & real[None, :]).to(tl.int32)
    request = tl.sum(before, 1)
    base = tl.sum(before * count[None, :], 1)
    valid = stored & (request < num_reqs)
    first = _group(tl.load(start_pos + request, mask=valid, other=0), RATIO, RATIO_SHIFT)
    group = first + row - base
    position = group * RATIO
    column = _group(group, BLOCK_SIZE, BLOCK_SHIFT)
    offset = group - column * BLOCK_SIZE
    valid = valid & (column < columns) & (position < table_rows)
    entry = block_table + request.to(tl.int64) * table_stride + column
    page = tl.load(entry, mask=valid, other=-1)
    # page * BLOCK_SIZE + offset <= INT32_MAX, without leaving 32 bits.
    fits = page <= _group(0x7FFFFFFF - offset, BLOCK_SIZE, BLOCK_SHIFT)
    valid = valid & (page >= 0) & fits
    if PAIRS:
        # One dense store: two interleaved ones crash Ascend's compiler.
        side = tl.arange(0, 2)[None, :]
        page_column = tl.where(valid, page, -1)[:, None]
        offset_column = tl.where(valid, offset, BLOCK_SIZE - 1)[:, None]
        pair = tl.where(side == 0, page_column, offset_column)
        tl.store(out_slots + row[:, None] * 2 + side, pair, mask=stored[:, None])
    else:
        slot = tl.where(valid, page, 0) * BLOCK_SIZE + offset
        tl.store(out_slots + row, tl.where(valid, slot, -1), mask=stored)
    tl.store(out_positions + row, tl.where(valid, position, -1), mask=stored)
    tl.store(out_requests + row, tl.where(valid, request, -1), mask=stored)

    dim = tl.arange(0, BLOCK_ROTARY)[None, :]
    source = tl.where(valid, position, 0).to(tl.int64)[:, None] * ROTARY + dim
    target = row.to(tl.int64)[:, None] * ROTARY + dim
    read = valid[:, None] & (dim < ROTARY)
    write = stored[:, None] & (dim < ROTARY)
    tl.store(out_cos + target, tl.load(cos_table + source, mask=read, other=1.0), mask=write)
    tl.store(out_sin + target, tl.load(sin_table + source, mask=read, other=0.0), mask=write)


def compressor_rows(
    query_start_loc: Tensor,
    start_pos: Tensor,
    seq_lens: Tensor | None,
    block_table: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    out_slots: Tensor,
    out_positions: Tensor,
    out_requests: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    ratio: int,
    block_size: int,
) -> None:
    """Launch the kernel; same contract as the reference."""
    num_rows = out_positions.numel()
    if num_rows == 0:
        return
    _compressor_rows_kernel[(triton.cdiv(num_rows, ROWS_PER_PROGRAM),)](
        query_start_loc,
        start_pos,
        start_pos if seq_lens is None else seq_lens,
        block_table,
        block_table.stride(0),
        cos_table,
        sin_table,
        out_slots,
        out_positions,
        out_requests,
        out_cos,
        out_sin,
        start_pos.numel(),
        num_rows,
        block_table.shape[1],
        cos_table.shape[0],
        HAS_LENGTHS=seq_lens is not None,
        PAIRS=out_slots.dim() == 2,
        RATIO=ratio,
        RATIO_SHIFT=power_shift(ratio),
        BLOCK_SIZE=block_size,
        BLOCK_SHIFT=power_shift(block_size),
        ROTARY=cos_table.shape[1],
        BLOCK_ROTARY=triton.next_power_of_2(cos_table.shape[1]),
        BLOCK_REQS=triton.next_power_of_2(max(start_pos.numel(), 1)),
        BLOCK=ROWS_PER_PROGRAM,
    )
