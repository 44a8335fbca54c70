"""Triton kernel that gathers RoPE rows, and the copy that other kernels share."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8


@triton.jit
def copy_rows(table, out, position, row, mask, ROTARY: tl.constexpr, BLOCK_ROTARY: tl.constexpr):
    """Copy table rows ``position`` to rows ``row`` of ``out`` where ``mask``."""
    column = tl.arange(0, BLOCK_ROTARY)[None, :]
    both = mask[:, None] & (column < ROTARY)
    source = position.to(tl.int64)[:, None] * ROTARY + column
    target = row.to(tl.int64)[:, None] * ROTARY + column
    tl.store(out + target, tl.load(table + source, mask=both, other=0.0), mask=both)


@triton.jit(do_not_specialize=["positions", "cos", "sin", "out_cos", "out_sin", "length", "count"])
def _rope_gather_kernel(
    positions,
    cos,
    sin,
    out_cos,
    out_sin,
    length,
    count,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = token < count
    position = tl.load(positions + token, mask=mask, other=0)
    position = tl.minimum(tl.maximum(position, 0), length - 1)
    copy_rows(cos, out_cos, position, token, mask, ROTARY, BLOCK_ROTARY)
    copy_rows(sin, out_sin, position, token, mask, ROTARY, BLOCK_ROTARY)


def rope_gather(
    positions: Tensor, cos_table: Tensor, sin_table: Tensor, out_cos: Tensor, out_sin: Tensor
) -> None:
    """Launch the kernel; same contract as the reference."""
    count = positions.numel()
    length, rotary = cos_table.shape
    if count == 0:
        return
    _rope_gather_kernel[(triton.cdiv(count, BLOCK),)](
        positions,
        cos_table,
        sin_table,
        out_cos,
        out_sin,
        length,
        count,
        ROTARY=rotary,
        BLOCK_ROTARY=triton.next_power_of_2(rotary),
        BLOCK=BLOCK,
    )
