"""Triton kernel of the compressor's rows: one program a block of output rows."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs
from dsacp.kernels.rope_gather.triton import row_words
from dsacp.kernels.triton_integers import divide_by, power_shift, slot_fits
from dsacp.kernels.triton_requests import request_tiles

ROWS_PER_PROGRAM = 16


@triton.jit
def _count_groups(
    query_start_loc, start_pos, seq_lens, row, first, before, num_reqs, HAS_LENGTHS: tl.constexpr,
    RATIO: tl.constexpr, RATIO_SHIFT: tl.constexpr, BLOCK_REQS: tl.constexpr,
):  # fmt: skip
    """Count, of a tile of requests, those that end at or before each row, and their groups.

    ``before`` are the groups of the tiles before; the third result is those with this one's.
    """
    req = first + tl.arange(0, BLOCK_REQS)
    real = req < num_reqs
    begin = tl.load(query_start_loc + req, mask=real, other=0)
    end = tl.load(query_start_loc + 1 + req, mask=real, other=0)
    start = tl.load(start_pos + req, mask=real, other=-1)
    active = (start >= 0) & (end > begin)
    if HAS_LENGTHS:
        active = active & (tl.load(seq_lens + req, mask=real, other=0) > 0)
    start = tl.where(active, start, 0)
    last = tl.where(active, start + end - begin, 0)
    count = divide_by(last, RATIO, RATIO_SHIFT) - divide_by(start, RATIO, RATIO_SHIFT)
    ends = before + tl.cumsum(count, 0)
    ended = ((ends[None, :] <= row[:, None]) & real[None, :]).to(tl.int32)
    groups = tl.sum(ended * count[None, :], 1)
    return tl.sum(ended, 1), groups, before + tl.sum(count, 0)


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
    MORE_REQS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stored = row < num_rows
    # The owner of a row is the number of requests that end at or before it.
    request, base, total = _count_groups(
        query_start_loc, start_pos, seq_lens, row, 0, 0, num_reqs, HAS_LENGTHS, RATIO, RATIO_SHIFT,
        BLOCK_REQS,
    )  # fmt: skip
    if MORE_REQS:
        for next_req in range(BLOCK_REQS, num_reqs, BLOCK_REQS):
            ended, groups, total = _count_groups(
                query_start_loc, start_pos, seq_lens, row, next_req, total, num_reqs, HAS_LENGTHS,
                RATIO, RATIO_SHIFT, BLOCK_REQS,
            )  # fmt: skip
            request += ended
            base += groups
    valid = stored & (request < num_reqs)
    # Ascend loads every lane and selects afterwards: no address may leave its tensor. Minima stay
    # vector instructions where selects of a mask do not.
    owner = tl.minimum(request, tl.maximum(num_reqs - 1, 0))
    start = tl.load(start_pos + owner, mask=valid, other=0)
    group = divide_by(start, RATIO, RATIO_SHIFT) + row - base
    position = group * RATIO
    column = divide_by(group, BLOCK_SIZE, BLOCK_SHIFT)
    offset = group - column * BLOCK_SIZE
    valid = valid & (column < columns) & (position < table_rows)
    entry = block_table + owner.to(tl.int64) * table_stride + tl.minimum(column, columns - 1)
    page = tl.load(entry, mask=valid, other=-1)
    valid = valid & (page >= 0) & slot_fits(page, offset, BLOCK_SIZE, BLOCK_SHIFT)
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
    source = tl.where(valid, position, 0).to(tl.int64)[:, None] * ROTARY
    source += row_words(ROTARY, BLOCK_ROTARY)
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
    programs = triton.cdiv(num_rows, ROWS_PER_PROGRAM)
    check_programs("compressor_rows", programs, out_positions.device.type)
    # Ascend loads masked words too, and an empty tensor has no first one to stand for them.
    starts = start_pos if start_pos.numel() else out_positions
    table = block_table if block_table.numel() else out_positions
    cos, sin = (cos_table, sin_table) if cos_table.numel() else (out_cos, out_sin)
    _compressor_rows_kernel[(programs,)](
        query_start_loc,
        starts,
        starts if seq_lens is None else seq_lens,
        table,
        block_table.stride(0),
        cos,
        sin,
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
        BLOCK=ROWS_PER_PROGRAM,
        **request_tiles(start_pos.numel()),
    )
