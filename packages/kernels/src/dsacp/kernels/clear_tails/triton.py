"""Triton kernel of the tails: fields and RoPE rows of up to two ranges of steps in one launch."""

from collections.abc import Sequence
from itertools import groupby

import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import launch_parts

BLOCK = 256
ROPE_WORDS = 1024

NO_TABLE = ((0, 0),)
"""Width and count: one launch, of the groups' fields alone."""
_RANGE = ["rows", "rows_end", "tokens", "tokens_end", "start", "local_start"]


@triton.jit
def _fill(storage, layout, field, index, end, value):
    """Write a value up to ``end``; -1 in the layout means that the field is absent."""
    offset = tl.load(layout + field)
    filled = tl.zeros_like(index) + value
    tl.store(storage + offset.to(tl.int64) + index, filled, mask=(index < end) & (offset >= 0))


@triton.jit(
    do_not_specialize=[
        "arena",
        "layout",
        "rope_bank",
        "rope_layout",
        "groups",
        "num_banks",
        "bank",
        "rope_dim",
        "first_block",
        "a_steps",
        *(f"{prefix}_{name}" for prefix in ("a", "b") for name in _RANGE),
    ]
)
def _clear_tails_kernel(
    arena,
    layout,
    rope_bank,
    rope_layout,
    groups,
    num_banks,
    bank,
    rope_dim,
    first_block,
    a_steps,
    a_rows,
    a_rows_end,
    a_tokens,
    a_tokens_end,
    a_start,
    a_local_start,
    b_rows,
    b_rows_end,
    b_tokens,
    b_tokens_end,
    b_start,
    b_local_start,
    BLOCK: tl.constexpr,
    ROPE_WORDS: tl.constexpr,
):
    """Clean one block of one group's, or one RoPE table's, step."""
    block = first_block + tl.program_id(0)
    step = tl.program_id(1)
    group = tl.program_id(2)
    in_a = step < a_steps
    tokens = tl.where(in_a, a_tokens, b_tokens)
    tokens_end = tl.where(in_a, a_tokens_end, b_tokens_end)
    if group < groups:
        fields = layout + (group * num_banks + bank + step) * 7
        entry = block * BLOCK + tl.arange(0, BLOCK)
        row = tl.where(in_a, a_rows, b_rows) + entry
        rows_end = tl.where(in_a, a_rows_end, b_rows_end)
        _fill(arena, fields, 0, row + 1, rows_end + 1, tl.where(in_a, a_start, b_start))
        local_start = tl.where(in_a, a_local_start, b_local_start)
        _fill(arena, fields, 2, row + 1, rows_end + 1, local_start)
        _fill(arena, fields, 1, row, rows_end, 0)
        _fill(arena, fields, 3, row, rows_end, 0)
        _fill(arena, fields, 4, row, rows_end, 0)
        _fill(arena, fields, 5, tokens + entry, tokens_end, 0)
        _fill(arena, fields, 6, tokens + entry, tokens_end, -1)
    else:
        table = rope_layout + ((group - groups) * num_banks + bank + step) * 2
        word = block * ROPE_WORDS + tl.arange(0, ROPE_WORDS)
        word += tokens * rope_dim
        for part in tl.static_range(2):
            _fill(rope_bank, table, part, word, tokens_end * rope_dim, 1 - part)


def clear_tails(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    rope_widths: Sequence[int],
    first_step: int,
    rows_from: Sequence[int],
    rows_to: Sequence[int],
    tokens_from: Sequence[int],
    tokens_to: Sequence[int],
    last_starts: Sequence[int],
    last_local_starts: Sequence[int],
) -> None:
    """Launch the kernel; same contract as the reference.

    One launch clears two runs of equal steps, the first step and the later ones, in all groups
    and in neighbouring tables of one width; tables of other widths each cost another launch.
    """
    bounds = (rows_from, rows_to, tokens_from, tokens_to, last_starts, last_local_starts)
    runs = [(len(list(same)), *run) for run, same in groupby(zip(*bounds, strict=True))]
    for index in range(0, len(runs), 2):
        pair = [*runs[index : index + 2], (0,) * 7][:2]
        fields, first = layout.shape[0], 0
        widths = [(width, len(list(same))) for width, same in groupby(rope_widths)]
        for width, tables in widths or NO_TABLE:
            rows = rope_layout[first : first + tables]
            _launch(arena, layout, rope_bank, rows, width, fields, first_step, pair)
            fields, first = 0, first + tables
        first_step += pair[0][0] + pair[1][0]


def _launch(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    width: int,
    groups: int,
    first_step: int,
    pair: Sequence[tuple[int, ...]],
) -> None:
    tables = rope_layout.shape[0]
    entries = max(max(run[2] - run[1], run[4] - run[3]) for run in pair) * min(groups, 1)
    words = max(run[4] - run[3] for run in pair) * width * min(tables, 1)
    blocks = max(triton.cdiv(entries, BLOCK), triton.cdiv(words, ROPE_WORDS))
    steps = pair[0][0] + pair[1][0]
    # Nothing to clean makes no part.
    for first, part in launch_parts(blocks, steps * (groups + tables), arena.device.type):
        _clear_tails_kernel[(part, steps, groups + tables)](
            arena,
            layout,
            rope_bank,
            rope_layout,
            groups,
            layout.shape[1],
            first_step,
            width,
            first,
            *pair[0],
            *pair[1][1:],
            BLOCK=BLOCK,
            ROPE_WORDS=ROPE_WORDS,
        )
