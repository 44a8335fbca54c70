"""Triton kernel of DSpark's slot lists: one program a token."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import launch_parts
from dsacp.kernels.triton_integers import divide_by, power_shift, slot_fits
from dsacp.kernels.triton_requests import find_owner, request_tiles


@triton.jit(
    do_not_specialize=[
        "query_start_loc",
        "seq_lens",
        "block_table",
        "table_stride",
        "out",
        "first_token",
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
    first_token,
    num_reqs,
    window,
    columns,
    width,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK_REQS: tl.constexpr,
    MORE_REQS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    token = first_token + tl.program_id(0)
    owner = find_owner(query_start_loc, token, num_reqs, BLOCK_REQS, MORE_REQS)
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
    column = divide_by(position, BLOCK_SIZE, SHIFT)
    offset = position - column * BLOCK_SIZE
    valid = (position < stop) & (column < columns) & (rank < width)
    row = block_table + request.to(tl.int64) * table_stride
    # Ascend loads every lane and selects afterwards: no address may leave the table.
    page = tl.load(row + tl.where(valid, column, 0), mask=valid, other=-1)
    fits = slot_fits(page, offset, BLOCK_SIZE, SHIFT)
    slot = tl.where((page >= 0) & fits, page * BLOCK_SIZE + offset, -1)
    tl.store(out + token.to(tl.int64) * width + rank, slot, mask=rank < width)


def dspark_indices(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    out: Tensor,
    window: int,
    block_size: int,
) -> None:
    """Launch the kernel; same contract as the reference."""
    for first, tokens in launch_parts(out.shape[0], 1, out.device.type):
        _dspark_indices_kernel[(tokens,)](
            query_start_loc,
            seq_lens,
            block_table,
            block_table.stride(0),
            out,
            first,
            seq_lens.numel(),
            window,
            block_table.shape[1],
            out.shape[1],
            BLOCK_SIZE=block_size,
            SHIFT=power_shift(block_size),
            BLOCK_WIDTH=triton.next_power_of_2(out.shape[1]),
            **request_tiles(seq_lens.numel()),
        )
