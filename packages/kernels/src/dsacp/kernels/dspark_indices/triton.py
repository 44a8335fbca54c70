"""Triton kernel of DSpark's slot lists: one program a token."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.covered_rows.triton import find_owner


@triton.jit(
    do_not_specialize=[
        "query_start_loc",
        "seq_lens",
        "block_table",
        "table_stride",
        "out",
        "num_reqs",
        "window",
        "columns",
        "width",
    ]
)
def _dspark_indices_kernel(
    query_start_loc,
    seq_lens,
    block_table,
    table_stride,
    out,
    num_reqs,
    window,
    columns,
    width,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK_REQS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    token = tl.program_id(0)
    owner = find_owner(query_start_loc, token, num_reqs, BLOCK_REQS)
    owned = (owner < num_reqs) & (token >= tl.load(query_start_loc))
    request = tl.where(owned, owner, 0)
    begin = tl.load(query_start_loc + request)
    length = tl.load(seq_lens + request)
    prefix = length - (tl.load(query_start_loc + request + 1) - begin)
    start = tl.maximum(prefix - window, 0)
    # A token without an owner sees nothing: its list ends before it starts.
    stop = tl.where(owned, length, 0)
    rank = tl.arange(0, BLOCK_WIDTH)
    position = start + rank
    if SHIFT >= 0:
        column = position >> SHIFT
        offset = position & (BLOCK_SIZE - 1)
    else:
        column = position // BLOCK_SIZE
        offset = position % BLOCK_SIZE
    valid = (position < stop) & (column < columns) & (rank < width)
    row = block_table + request.to(tl.int64) * table_stride
    page = tl.load(row + column, mask=valid, other=-1)
    last: tl.constexpr = 0x7FFFFFFF // BLOCK_SIZE
    rest: tl.constexpr = 0x7FFFFFFF % BLOCK_SIZE
    fits = (page < last) | ((page == last) & (offset <= rest))
    slot = tl.where((page >= 0) & fits, page * BLOCK_SIZE + offset, -1)
    tl.store(out + token.to(tl.int64) * width + rank, slot, mask=rank < width)


def power_shift(value: int) -> int:
    """Return log2 of a power of two, or -1: a constant shift beats a division on every device."""
    return value.bit_length() - 1 if value & (value - 1) == 0 else -1


def dspark_indices(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    out: Tensor,
    window: int,
    block_size: int,
) -> None:
    """Launch the kernel; same contract as the reference."""
    if out.shape[0] == 0:
        return
    _dspark_indices_kernel[(out.shape[0],)](
        query_start_loc,
        seq_lens,
        block_table,
        block_table.stride(0),
        out,
        seq_lens.numel(),
        window,
        block_table.shape[1],
        out.shape[1],
        BLOCK_SIZE=block_size,
        SHIFT=power_shift(block_size),
        BLOCK_REQS=triton.next_power_of_2(seq_lens.numel()),
        BLOCK_WIDTH=triton.next_power_of_2(out.shape[1]),
    )
