"""The draft steps' kernel: a program is a block of rows and tokens, or of RoPE rows."""

import triton
import triton.language as tl

from dsacp.kernels.draft_steps.triton_blocks import group_block, table_block
from dsacp.kernels.local_metadata.triton import clip

RUNTIME = [
    "query_start_loc",
    "seq_lens",
    "num_rejected",
    "num_reqs",
    "drafts",
    "pointers",
    "arena",
    "layout",
    "rope_bank",
    "rope_layout",
    "masked",
    "table_at",
    "groups",
    "table_rows",
    "num_banks",
    "bank",
    "first_steps",
    "ahead",
    "later_steps",
    "rows",
    "tokens",
    "later_count",
    "start_count",
    "later_start_count",
    "tp_size",
    "tp_rank",
    "pad_query_len",
    "max_model_len",
    "sizes",
    "length0",
    "length1",
    "length2",
    "length3",
]
"""Arguments that never choose a compiled variant: a new batch or address must not recompile."""


@triton.jit
def _step_and_block(index, first_blocks, later_blocks, ahead):
    """Split a program index: blocks of the first step, then those of each later step."""
    rest = tl.maximum(index - first_blocks, 0)
    later = index >= first_blocks
    step = tl.where(later, ahead + rest // later_blocks, 0)
    return step, tl.where(later, rest % later_blocks, index)


@triton.jit(do_not_specialize=RUNTIME)
def draft_steps_kernel(
    query_start_loc,
    seq_lens,
    num_rejected,
    num_reqs,
    drafts,
    pointers,
    arena,
    layout,
    rope_bank,
    rope_layout,
    masked,
    table_at,
    groups,
    table_rows,
    num_banks,
    bank,
    first_steps,
    ahead,
    later_steps,
    rows,
    tokens,
    later_count,
    start_count,
    later_start_count,
    tp_size,
    tp_rank,
    pad_query_len,
    max_model_len,
    sizes,
    length0,
    length1,
    length2,
    length3,
    SIZE_BITS: tl.constexpr,
    POW2: tl.constexpr,
    SATURATE: tl.constexpr,
    REPEAT: tl.constexpr,
    CAUSAL: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
    VECTOR: tl.constexpr,
    GATHER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Write one block; RoPE addresses start at ``pointers + table_at``.

    ``drafts`` has ``masked`` rows: none where every request takes part, and any address then.
    Query starts repeat their last one up to ``start_count``: there a larger capture wrote its own.
    ``sizes`` packs the groups' block sizes, or their log2 where POW2.
    """
    real = clip(tl.load(num_reqs), 0, rows)
    share = tl.cdiv(tokens, tp_size)
    later_share = tl.cdiv(later_count, tp_size)
    padded, later_padded = share * tp_size, later_share * tp_size
    first_blocks = first_steps * tl.cdiv(tl.maximum(start_count + 1, padded), BLOCK)
    later_blocks = tl.cdiv(tl.maximum(later_start_count + 1, later_padded), BLOCK)
    per_group = first_blocks + later_steps * later_blocks
    # RoPE rows first: they move most of the bytes, and the fields' latency hides behind them.
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    if index < groups * per_group:
        group = index // per_group
        step, block = _step_and_block(index % per_group, first_blocks, later_blocks, ahead)
        group_block(
            query_start_loc,
            seq_lens,
            num_rejected,
            drafts,
            pointers + 3 * group,
            arena,
            layout + (group * num_banks + bank + step) * 7,
            step,
            block,
            real,
            masked,
            table_rows,
            rows,
            tokens,
            later_count,
            start_count,
            later_start_count,
            tp_size,
            tp_rank,
            pad_query_len,
            bank,
            max_model_len,
            ((sizes >> (group * SIZE_BITS)) & ((1 << SIZE_BITS) - 1)).to(tl.int32),
            POW2,
            SATURATE,
            REPEAT,
            CAUSAL,
            GATHER,
            CHUNK,
            BLOCK,
        )
    else:
        rest = index - groups * per_group
        first_rope = first_steps * tl.cdiv(padded, ROPE_BLOCK)
        later_rope = tl.maximum(tl.cdiv(later_padded, ROPE_BLOCK), 1)
        per_table = first_rope + later_steps * later_rope
        table = rest // per_table
        rope_step, rope_block = _step_and_block(rest % per_table, first_rope, later_rope, ahead)
        low_limit = tl.where(table == 0, length0, length1)
        high_limit = tl.where(table == 2, length2, length3)
        table_block(
            query_start_loc,
            seq_lens,
            num_rejected,
            drafts,
            pointers + table_at + 2 * table,
            rope_bank,
            rope_layout + (table * num_banks + bank + rope_step) * 2,
            tl.where(table < 2, low_limit, high_limit),
            rope_step,
            rope_block,
            real,
            masked,
            rows,
            tokens,
            padded,
            later_padded,
            bank,
            max_model_len,
            SATURATE,
            CAUSAL,
            ROTARY,
            BLOCK_ROTARY,
            VECTOR,
            GATHER,
            CHUNK,
            ROPE_BLOCK,
        )
