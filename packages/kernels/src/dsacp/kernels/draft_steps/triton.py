"""Launcher of the draft steps' Triton kernel: everything in one launch for ordinary engines."""

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

import triton
from torch import Tensor

from dsacp.core import CapacityError, round_up
from dsacp.kernels.draft_steps.triton_kernel import draft_steps_kernel
from dsacp.kernels.draft_steps.triton_locate import MAX_REQUESTS
from dsacp.kernels.slot_mapping.triton import block_divisor

TABLES_PER_LAUNCH = 4
CUDA_TILES = (8, 4, 1)
OTHER_TILES = (32, 16, 4)
"""Rows, RoPE rows and warps of a program. Measured on an H200; an NPU has few, wide cores."""


def draft_steps(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    block_tables: Sequence[Tensor],  # noqa: ARG001  # the kernel reads tables by address
    cos_tables: Sequence[Tensor],
    sin_tables: Sequence[Tensor],  # noqa: ARG001
    pointers: Tensor,
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    block_sizes: Sequence[int],
    row_counts: Sequence[int],
    token_counts: Sequence[int],
    first_step: int,
    tp_size: int,
    tp_rank: int,
    pad_query_len: int,
    max_model_len: int,
    saturate: bool,
    repeat_padding: bool,
    causal: bool,
) -> None:
    """Launch the kernel; same contract as the reference.

    More than 12 groups (2 with a block size that is no power of two), more than 4 RoPE tables,
    tables of several widths and later steps of several sizes each cost another launch.
    """
    if row_counts[0] > MAX_REQUESTS:
        raise CapacityError(
            f"the batch has {row_counts[0]} request rows, one launch searches {MAX_REQUESTS}: "
            "split the batch"
        )
    pow2 = all(size & (size - 1) == 0 for size in block_sizes)
    bits = 5 if pow2 else 30
    groups = _chunks([0] * len(block_sizes), 60 // bits)
    tables = _chunks([table.shape[1] for table in cos_tables], TABLES_PER_LAUNCH)
    padded = round_up(token_counts[0], tp_size)
    block, rope_block, warps = CUDA_TILES if arena.is_cuda else OTHER_TILES
    for group, table in zip_longest(groups, tables, fillvalue=range(0)):
        lengths = [cos_tables[index].shape[0] for index in table]
        rotary = cos_tables[table.start].shape[1] if table else 1
        for first, ahead, steps, count in _runs(row_counts):
            later_padded = round_up(count, tp_size)
            blocks = first * triton.cdiv(max(row_counts[0] + 1, padded), block)
            blocks += steps * triton.cdiv(max(count + 1, later_padded), block)
            rope_blocks = first * triton.cdiv(padded, rope_block)
            rope_blocks += steps * max(triton.cdiv(later_padded, rope_block), 1)
            draft_steps_kernel[(len(group) * blocks + len(table) * rope_blocks,)](
                query_start_loc,
                seq_lens,
                num_rejected,
                num_reqs,
                _from(pointers, 3 * group.start),
                pointers[3 * len(block_sizes) + 2 * table.start :],
                arena,
                _from(layout, group.start),
                rope_bank,
                _from(rope_layout, table.start),
                len(group),
                layout.shape[1],
                first_step,
                first,
                ahead,
                steps,
                row_counts[0],
                token_counts[0],
                count,
                tp_size,
                tp_rank,
                pad_query_len,
                max_model_len,
                _pack([block_divisor(block_sizes[index], pow2) for index in group], bits),
                *lengths,
                *[1] * (TABLES_PER_LAUNCH - len(lengths)),
                SIZE_BITS=bits,
                POW2=pow2,
                SATURATE=saturate,
                REPEAT=repeat_padding,
                CAUSAL=causal,
                ROTARY=rotary,
                BLOCK_ROTARY=triton.next_power_of_2(rotary),
                BLOCK=block,
                ROPE_BLOCK=rope_block,
                num_warps=warps,
            )


def _from(tensor: Tensor, start: int) -> Tensor:
    """Skip entries, and the cost of a view where there is nothing to skip."""
    return tensor[start:] if start else tensor


def _runs(row_counts: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield launches as (has the first step, index of the first later one, later steps, rows)."""
    first, ahead = 1, 1
    for count, steps in groupby(row_counts[1:]):
        length = len(list(steps))
        yield first, ahead, length, count
        first, ahead = 0, ahead + length
    if first:
        yield 1, 1, 0, 0


def _chunks(kinds: Sequence[int], limit: int) -> list[range]:
    """Split indices into ranges of one kind and at most ``limit`` entries."""
    chunks: list[range] = []
    for index, kind in enumerate(kinds):
        if chunks and len(chunks[-1]) < limit and kinds[chunks[-1].start] == kind:
            chunks[-1] = range(chunks[-1].start, index + 1)
        else:
            chunks.append(range(index, index + 1))
    return chunks


def _pack(values: Sequence[int], bits: int) -> int:
    """Put small integers into one i64; the top bit keeps the argument's type the same."""
    return sum(value << (bits * index) for index, value in enumerate(values)) | 1 << 62
