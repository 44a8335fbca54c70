"""Triton kernel of cache slots, and the look-up that other kernels share."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs
from dsacp.kernels.triton_integers import divide

BLOCK = 128


@triton.jit
def find_slots(table, row_stride, rows, width, row, position, size, valid, POW2: tl.constexpr):
    """Return cache slots; -1 where not ``valid``, past the table or int32, or without a block.

    ``size`` is log2 of the block size where POW2. Ascend loads every lane and selects afterwards,
    so that no lane's address may leave the table, which has a row and a column at least.
    """
    if POW2:
        column = position >> size
        inside = position & ((1 << size) - 1)
    else:
        column = divide(position, size)
        inside = position - column * size
    valid = valid & (column < width) & (row < rows)
    entry = tl.where(valid, row, 0).to(tl.int64) * row_stride + tl.where(valid, column, 0)
    block = tl.load(table + entry, mask=valid, other=-1)
    if POW2:
        start = block << size
        fits = block <= (0x7FFFFFFF >> size)
    else:
        start = block * size
        last = 0x7FFFFFFF // size
        fits = (block < last) | ((block == last) & (inside <= 0x7FFFFFFF - last * size))
    return tl.where((block >= 0) & fits, start + inside, -1)


@triton.jit(
    do_not_specialize=[
        "positions",
        "token_to_req",
        "table",
        "out",
        "row_stride",
        "rows",
        "width",
        "count",
        "block_size",
        "size",
    ]
)
def _slot_mapping_kernel(
    positions,
    token_to_req,
    table,
    out,
    row_stride,
    rows,
    width,
    count,
    block_size,
    size,
    POW2: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = token < count
    position = tl.load(positions + token, mask=mask, other=-1)
    row = tl.load(token_to_req + token, mask=mask, other=-1)
    valid = (position >= 0) & (row >= 0)
    slot = find_slots(table, row_stride, rows, width, row, position, size, valid, POW2)
    if PAIRS:
        # One tile for both columns: triton-ascend's compiler asserts on two stores of stride 2.
        block = (slot >> size) if POW2 else divide(slot, block_size)
        block = tl.where(slot >= 0, block, -1)
        offset = tl.where(slot >= 0, slot - block * block_size, block_size - 1)
        column = tl.arange(0, 2)[None, :]
        pair = tl.where(column == 0, block[:, None], offset[:, None])
        tl.store(out + token[:, None] * 2 + column, pair, mask=mask[:, None])
    else:
        tl.store(out + token, slot, mask=mask)


def block_divisor(block_size: int, pow2: bool) -> int:
    """Return what ``find_slots`` divides by: log2 of the size, or the size itself."""
    return block_size.bit_length() - 1 if pow2 else block_size


def slot_mapping(
    positions: Tensor,
    token_to_req: Tensor,
    block_table: Tensor,
    block_size: int,
    out: Tensor,
    block_offset: bool,
) -> None:
    """Launch the kernel; same contract as the reference."""
    count = positions.numel()
    if count == 0:
        return
    pow2 = block_size & (block_size - 1) == 0
    programs = triton.cdiv(count, BLOCK)
    check_programs("slot_mapping", programs, out.device.type)
    _slot_mapping_kernel[(programs,)](
        positions,
        token_to_req,
        block_table,
        out,
        block_table.stride(0),
        block_table.shape[0],
        block_table.shape[1],
        count,
        block_size,
        block_divisor(block_size, pow2),
        POW2=pow2,
        PAIRS=block_offset,
        BLOCK=BLOCK,
    )
