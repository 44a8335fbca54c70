"""Triton kernel that gathers RoPE rows, and the row access that other kernels share."""

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs

BLOCK = 8


@triton.jit
def load_rows(table, position, mask, ROTARY: tl.constexpr, BLOCK_ROTARY: tl.constexpr):
    """Load table rows where ``mask``; every position is in the table."""
    column = tl.arange(0, BLOCK_ROTARY)[None, :]
    source = table + position.to(tl.int64)[:, None] * ROTARY + row_words(ROTARY, BLOCK_ROTARY)
    return tl.load(source, mask=mask[:, None] & (column < ROTARY), other=0.0)


@triton.jit
def row_words(ROTARY: tl.constexpr, BLOCK_ROTARY: tl.constexpr):
    """Return the words of a table row that lanes may read: those past it repeat the last one.

    Ascend reads masked lanes of a gather, and behind the last row lies another tensor.
    """
    column = tl.arange(0, BLOCK_ROTARY)[None, :]
    if BLOCK_ROTARY > ROTARY:
        column = tl.minimum(column, ROTARY - 1)
    return column


@triton.jit
def store_rows(out, row, values, mask, ROTARY: tl.constexpr, BLOCK_ROTARY: tl.constexpr):
    """Store values as rows of ``out`` where ``mask``."""
    column = tl.arange(0, BLOCK_ROTARY)[None, :]
    target = out + row.to(tl.int64)[:, None] * ROTARY + column
    tl.store(target, values, mask=mask[:, None] & (column < ROTARY))


@triton.jit
def as_floats(address):
    """Return an int64 address as a pointer to fp32."""
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def _as_aligned_floats(address):
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def copy_pair(
    cos,
    sin,
    cos_out,
    sin_out,
    position,
    row,
    has_cos,
    has_sin,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
):
    """Copy rows of a cos and a sin table, both loaded before either is stored."""
    cos_rows = load_rows(cos, position, has_cos, ROTARY, BLOCK_ROTARY)
    sin_rows = load_rows(sin, position, has_sin, ROTARY, BLOCK_ROTARY)
    store_rows(cos_out, row, cos_rows, has_cos, ROTARY, BLOCK_ROTARY)
    store_rows(sin_out, row, sin_rows, has_sin, ROTARY, BLOCK_ROTARY)


@triton.jit
def copy_pairs(
    cos,
    sin,
    cos_out,
    sin_out,
    position,
    row,
    has_cos,
    has_sin,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
):
    """Copy table rows between addresses, 16 bytes an access where the addresses allow it.

    The casts stand in the branches: what is said of a pointer's alignment holds wherever it goes.
    """
    if ((cos | sin | cos_out | sin_out) & 15) == 0:
        copy_pair(
            _as_aligned_floats(cos),
            _as_aligned_floats(sin),
            _as_aligned_floats(cos_out),
            _as_aligned_floats(sin_out),
            position,
            row,
            has_cos,
            has_sin,
            ROTARY,
            BLOCK_ROTARY,
        )
    else:
        copy_pair(
            as_floats(cos),
            as_floats(sin),
            as_floats(cos_out),
            as_floats(sin_out),
            position,
            row,
            has_cos,
            has_sin,
            ROTARY,
            BLOCK_ROTARY,
        )


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
    copy_pair(cos, sin, out_cos, out_sin, position, token, mask, mask, ROTARY, BLOCK_ROTARY)


def rope_gather(
    positions: Tensor, cos_table: Tensor, sin_table: Tensor, out_cos: Tensor, out_sin: Tensor
) -> None:
    """Launch the kernel; same contract as the reference."""
    count = positions.numel()
    length, rotary = cos_table.shape
    if count == 0:
        return
    programs = triton.cdiv(count, BLOCK)
    check_programs("rope_gather", programs, out_cos.device.type)
    _rope_gather_kernel[(programs,)](
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
