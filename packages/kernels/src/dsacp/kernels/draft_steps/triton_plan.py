"""How a call of the draft steps is cut into launches, planned from its integers alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, zip_longest

import torch
import triton
from torch import Tensor

from dsacp.core import CapacityError, round_up
from dsacp.kernels.direct import launcher
from dsacp.kernels.draft_steps.numbers import StepNumbers
from dsacp.kernels.draft_steps.triton_kernel import draft_steps_kernel
from dsacp.kernels.draft_steps.triton_tiles import MAX_REQUESTS, Tiles, choose_tiles
from dsacp.kernels.programs import check_programs
from dsacp.kernels.slot_mapping.triton import block_divisor

CACHED_CALLS = 1024
TABLES_PER_LAUNCH = 4


POINTERS: tuple[torch.dtype, ...] = (
    *(torch.int32, torch.int32, torch.int32, torch.int32, torch.int32),
    *(torch.int64, torch.int32, torch.int32, torch.float32, torch.int32),
)


@dataclass(frozen=True)
class Launch:
    """One launch: the first group and RoPE table that it serves, and its integers."""

    run: Callable[..., None]
    first_group: int
    first_table: int
    integers: tuple[int, ...]

    def storages(
        self,
        pointers: Tensor,
        arena: Tensor,
        layout: Tensor,
        rope_bank: Tensor,
        rope_layout: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the tensors that follow the inputs, from the first group and table on."""
        return (
            _from(pointers, 3 * self.first_group),
            arena,
            _from(layout, self.first_group),
            rope_bank,
            _from(rope_layout, self.first_table),
        )


@lru_cache(maxsize=CACHED_CALLS)
def plan_launches(
    numbers: tuple[int, ...],
    num_banks: int,
    table_rows: int,
    shapes: tuple[torch.Size, ...],
    device: int | None,
) -> tuple[Launch, ...]:
    """Plan a call from its integers alone, so that equal calls plan once.

    ``table_rows`` are those of the smallest block table, ``shapes`` those of the RoPE tables.
    """
    call = StepNumbers.unpack(numbers)
    if call.row_counts[0] > MAX_REQUESTS:
        raise CapacityError(
            f"the batch has {call.row_counts[0]} request rows, one launch searches "
            f"{MAX_REQUESTS}: split the batch"
        )
    limit = 60 // _size_bits(call)
    groups = _chunks([0] * len(call.block_sizes), limit)
    tables = _chunks([shape[1] for shape in shapes], TABLES_PER_LAUNCH)
    return tuple(
        _launch(call, (num_banks, table_rows), shapes, device, group, table, run)
        for group, table in zip_longest(groups, tables, fillvalue=range(0))
        for run in _runs(call.row_counts, call.starts_to)
    )


def _launch(
    call: StepNumbers,
    sizes_held: tuple[int, int],
    shapes: tuple[torch.Size, ...],
    device: int | None,
    group: range,
    table: range,
    run: tuple[int, int, int, int, int],
) -> Launch:
    first, ahead, steps, count, later_starts = run
    starts = call.starts_to[0]
    num_banks, table_rows = sizes_held
    tiles = choose_tiles(device, call.row_counts[0], call.token_counts[0])
    _check_vector(tiles, device)
    block, rope_block = tiles.rows, tiles.rope_rows
    rows, tokens, bits = call.row_counts[0], call.token_counts[0], _size_bits(call)
    padded, later_padded = round_up(tokens, call.tp_size), round_up(count, call.tp_size)
    blocks = first * triton.cdiv(max(starts + 1, padded), block)
    blocks += steps * triton.cdiv(max(later_starts + 1, later_padded), block)
    rope_blocks = first * triton.cdiv(padded, rope_block)
    rope_blocks += steps * max(triton.cdiv(later_padded, rope_block), 1)
    lengths = [shapes[index][0] for index in table]
    rotary = shapes[table.start][1] if table else 1
    pow2 = bits == POW2_BITS
    sizes = [block_divisor(call.block_sizes[index], pow2) for index in group]
    integers = (
        3 * (len(call.block_sizes) - group.start) + 2 * table.start,
        *(
            len(group),
            table_rows,
            num_banks,
            call.first_step,
            first,
            ahead,
            steps,
            rows,
            tokens,
            count,
            starts,
            later_starts,
        ),
        *(call.tp_size, call.tp_rank, call.pad_query_len, call.max_model_len, _pack(sizes, bits)),
        *lengths,
        *[1] * (TABLES_PER_LAUNCH - len(lengths)),
    )
    constants = {
        "SIZE_BITS": bits,
        "POW2": pow2,
        "SATURATE": call.saturate,
        "REPEAT": call.repeat_padding,
        "CAUSAL": call.causal,
        "ROTARY": rotary,
        "BLOCK_ROTARY": triton.next_power_of_2(rotary),
        **tiles.constants(),
    }
    grid = (len(group) * blocks + len(table) * rope_blocks, 1, 1)
    check_programs("draft_steps", grid[0], "npu" if device is None else "cuda")
    sample: tuple[torch.dtype | int, ...] = (*POINTERS, rows, *integers)
    launch = launcher(draft_steps_kernel, grid, device, sample, constants, tiles.warps)
    return Launch(launch, group.start, table.start, integers)


def _check_vector(tiles: Tiles, device: int | None) -> None:
    # Triton-Ascend loses the offset of a pointer that becomes an integer and a pointer again.
    compiled = isinstance(draft_steps_kernel, triton.JITFunction)
    assert device is not None or not compiled or not tiles.vector, (
        f"expected tiles without vectors away from CUDA, found {tiles}"
    )


POW2_BITS, ANY_BITS = 5, 30


def _size_bits(call: StepNumbers) -> int:
    """Return the bits of a packed block size: its log2, where all are powers of two."""
    return POW2_BITS if all(size & (size - 1) == 0 for size in call.block_sizes) else ANY_BITS


def _from(tensor: Tensor, start: int) -> Tensor:
    """Skip entries, and the cost of a view where there is nothing to skip."""
    return tensor[start:] if start else tensor


def _runs(
    row_counts: Sequence[int], start_counts: Sequence[int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield launches: has the first step, index of the first later one, later steps, their counts.

    The counts are of rows, and of rows through which starts are written.
    """
    first, ahead = 1, 1
    for (count, starts), steps in groupby(zip(row_counts[1:], start_counts[1:], strict=True)):
        length = len(list(steps))
        yield first, ahead, length, count, starts
        first, ahead = 0, ahead + length
    if first:
        yield 1, 1, 0, 0, 0


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
