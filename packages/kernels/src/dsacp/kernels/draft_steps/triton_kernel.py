"""Device code of the draft steps: a program is a block of rows and tokens, or of RoPE rows."""

import triton
import triton.language as tl

from dsacp.kernels.draft_steps.triton_locate import first_rows, first_tokens, later_rows
from dsacp.kernels.local_metadata.triton import clip, visible_length
from dsacp.kernels.rope_gather.triton import copy_rows
from dsacp.kernels.slot_mapping.triton import find_slots

RUNTIME = [
    "query_start_loc",
    "seq_lens",
    "num_rejected",
    "num_reqs",
    "pointers",
    "table_pointers",
    "arena",
    "layout",
    "rope_bank",
    "rope_layout",
    "groups",
    "num_banks",
    "bank",
    "first_steps",
    "ahead",
    "later_steps",
    "rows",
    "tokens",
    "later_count",
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
def _put(arena, fields, field, index, value, mask):
    """Store a field's entries; -1 in the layout means that the field is absent."""
    offset = tl.load(fields + field)
    tl.store(arena + offset.to(tl.int64) + index, value, mask=mask & (offset >= 0))


@triton.jit
def _put_rows(arena, fields, row, rows, begin, end, length, low, high, CAUSAL: tl.constexpr):
    inside = row < rows
    _put(arena, fields, 0, row, begin, row <= rows)
    _put(arena, fields, 1, row, length, inside)
    _put(arena, fields, 2, row, clip(begin, low, high) - low, row <= rows)
    _put(arena, fields, 3, row, visible_length(begin, end, length, low, high, CAUSAL), inside)
    _put(arena, fields, 4, row, tl.maximum(length - (end - begin), 0), inside)


@triton.jit
def _put_tokens(
    arena, fields, table, size, token, padded, position, cached, request, POW2: tl.constexpr
):
    inside = token < padded
    address = tl.load(table).to(tl.pointer_type(tl.int32))
    width = tl.load(table + 2).to(tl.int32)
    valid = inside & (cached >= 0)
    slot = find_slots(address, tl.load(table + 1), width, request, cached, size, valid, POW2)
    _put(arena, fields, 5, token, position, inside)
    _put(arena, fields, 6, token, slot, inside)


@triton.jit
def _step_and_block(index, first_blocks, later_blocks, ahead):
    """Split a program index: blocks of the first step, then those of each later step."""
    rest = tl.maximum(index - first_blocks, 0)
    later = index >= first_blocks
    step = tl.where(later, ahead + rest // later_blocks, 0)
    return step, tl.where(later, rest % later_blocks, index)


@triton.jit
def _group_block(
    query_start_loc,
    seq_lens,
    num_rejected,
    table,
    arena,
    fields,
    step,
    block,
    real,
    rows,
    tokens,
    later_count,
    tp_size,
    tp_rank,
    pad_query_len,
    max_model_len,
    size,
    POW2: tl.constexpr,
    SATURATE: tl.constexpr,
    REPEAT: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the rows and the tokens of one block of one group's step."""
    row = block * BLOCK + tl.arange(0, BLOCK)
    if step == 0:
        share = tl.cdiv(tokens, tp_size)
        begin, end, length = first_rows(
            query_start_loc, seq_lens, row, real, rows, tokens, pad_query_len, REPEAT
        )
        position, cached, request = first_tokens(
            query_start_loc, seq_lens, row, block * BLOCK, real, rows, BLOCK
        )
        count = rows
    else:
        share = tl.cdiv(later_count, tp_size)
        position, cached, length, begin, end = later_rows(
            seq_lens, num_rejected, row, step, real, rows, max_model_len, SATURATE, REPEAT
        )
        request = row
        count = later_count
    low = tp_rank * share
    _put_rows(arena, fields, row, count, begin, end, length, low, low + share, CAUSAL)
    _put_tokens(arena, fields, table, size, row, share * tp_size, position, cached, request, POW2)


@triton.jit
def _table_block(
    query_start_loc,
    seq_lens,
    num_rejected,
    pointer,
    rope_bank,
    rope_layout,
    limit,
    step,
    block,
    real,
    rows,
    padded,
    later_padded,
    max_model_len,
    SATURATE: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy the RoPE rows of one block of tokens."""
    token = block * BLOCK + tl.arange(0, BLOCK)
    if step == 0:
        position, _cached, _request = first_tokens(
            query_start_loc, seq_lens, token, block * BLOCK, real, rows, BLOCK
        )
        count = padded
    else:
        position, _cached, _request, _begin, _end = later_rows(
            seq_lens, num_rejected, token, step, real, rows, max_model_len, SATURATE, False
        )
        count = later_padded
    position = tl.minimum(position, limit - 1)
    for part in tl.static_range(2):
        source = tl.load(pointer + part).to(tl.pointer_type(tl.float32))
        offset = tl.load(rope_layout + part)
        target = rope_bank + offset.to(tl.int64)
        mask = (token < count) & (offset >= 0)
        copy_rows(source, target, position, token, mask, ROTARY, BLOCK_ROTARY)


@triton.jit(do_not_specialize=RUNTIME)
def draft_steps_kernel(
    query_start_loc,
    seq_lens,
    num_rejected,
    num_reqs,
    pointers,
    table_pointers,
    arena,
    layout,
    rope_bank,
    rope_layout,
    groups,
    num_banks,
    bank,
    first_steps,
    ahead,
    later_steps,
    rows,
    tokens,
    later_count,
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
    BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Write one block; ``sizes`` packs the groups' block sizes, or their log2 where POW2."""
    real = clip(tl.load(num_reqs), 0, rows)
    share = tl.cdiv(tokens, tp_size)
    later_share = tl.cdiv(later_count, tp_size)
    padded, later_padded = share * tp_size, later_share * tp_size
    first_blocks = first_steps * tl.cdiv(tl.maximum(rows + 1, padded), BLOCK)
    later_blocks = tl.cdiv(tl.maximum(later_count + 1, later_padded), BLOCK)
    per_group = first_blocks + later_steps * later_blocks
    index = tl.program_id(0)
    if index < groups * per_group:
        group = index // per_group
        step, block = _step_and_block(index % per_group, first_blocks, later_blocks, ahead)
        _group_block(
            query_start_loc,
            seq_lens,
            num_rejected,
            pointers + 3 * group,
            arena,
            layout + (group * num_banks + bank + step) * 7,
            step,
            block,
            real,
            rows,
            tokens,
            later_count,
            tp_size,
            tp_rank,
            pad_query_len,
            max_model_len,
            ((sizes >> (group * SIZE_BITS)) & ((1 << SIZE_BITS) - 1)).to(tl.int32),
            POW2,
            SATURATE,
            REPEAT,
            CAUSAL,
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
        _table_block(
            query_start_loc,
            seq_lens,
            num_rejected,
            table_pointers + 2 * table,
            rope_bank,
            rope_layout + (table * num_banks + bank + rope_step) * 2,
            tl.where(table < 2, low_limit, high_limit),
            rope_step,
            rope_block,
            real,
            rows,
            padded,
            later_padded,
            max_model_len,
            SATURATE,
            ROTARY,
            BLOCK_ROTARY,
            ROPE_BLOCK,
        )
