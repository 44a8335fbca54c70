"""Device code that writes one block of a draft step: rows and tokens, or RoPE rows."""

import triton
import triton.language as tl

from dsacp.kernels.draft_steps.triton_locate import first_rows, first_tokens, given_rows, later_rows
from dsacp.kernels.local_metadata.triton import clip, visible_length
from dsacp.kernels.rope_gather.triton import as_floats, copy_pair, copy_pairs
from dsacp.kernels.slot_mapping.triton import find_slots


@triton.jit
def _put(arena, offset, index, value, mask):
    """Store a field's entries; -1 in the layout means that the field is absent."""
    tl.store(arena + offset.to(tl.int64) + index, value, mask=mask & (offset >= 0))


@triton.jit
def group_block(
    query_start_loc,
    seq_lens,
    num_rejected,
    drafts,
    table,
    arena,
    fields,
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
    size,
    POW2: tl.constexpr,
    SATURATE: tl.constexpr,
    REPEAT: tl.constexpr,
    CAUSAL: tl.constexpr,
    GATHER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the rows and the tokens of one block of one group's step.

    Every load comes before the first store: a compiler cannot move a load over a store that may
    overlap it, and eleven loads in a row would cost more than all the rest.
    """
    row = block * BLOCK + tl.arange(0, BLOCK)
    at_start, at_len = tl.load(fields), tl.load(fields + 1)
    at_local_start, at_local_len = tl.load(fields + 2), tl.load(fields + 3)
    at_first, at_position, at_slot = tl.load(fields + 4), tl.load(fields + 5), tl.load(fields + 6)
    address = tl.load(table).to(tl.pointer_type(tl.int32))
    stride, width = tl.load(table + 1), tl.load(table + 2).to(tl.int32)
    if step == 0:
        share = tl.cdiv(tokens, tp_size)
        begin, end, length = given_rows(
            query_start_loc, seq_lens, drafts, row, rows, tokens, masked, bank, CAUSAL
        )
        position, cached, request = first_tokens(
            query_start_loc,
            seq_lens,
            drafts,
            row,
            block * BLOCK,
            real,
            rows,
            tokens,
            masked,
            bank,
            max_model_len,
            SATURATE,
            CAUSAL,
            GATHER,
            CHUNK,
            BLOCK,
        )
        begin, end, length = first_rows(
            query_start_loc,
            begin,
            end,
            length,
            row,
            real,
            rows,
            tokens,
            pad_query_len,
            bank,
            max_model_len,
            SATURATE,
            REPEAT,
            CAUSAL,
        )
        count = rows
        last = start_count
    else:
        share = tl.cdiv(later_count, tp_size)
        position, cached, length, begin, end = later_rows(
            query_start_loc,
            seq_lens,
            num_rejected,
            drafts,
            row,
            step,
            real,
            rows,
            tokens,
            masked,
            bank,
            max_model_len,
            SATURATE,
            REPEAT,
            CAUSAL,
        )
        request = row
        count = later_count
        last = later_start_count
        begin = tl.minimum(begin, later_count)
    is_token = row < share * tp_size
    has_slot = is_token & (cached >= 0)
    slot = find_slots(address, stride, table_rows, width, request, cached, size, has_slot, POW2)
    low = tp_rank * share
    high = low + share
    visible = visible_length(begin, end, length, low, high, CAUSAL)
    _put(arena, at_start, row, begin, row <= last)
    _put(arena, at_len, row, length, row < count)
    _put(arena, at_local_start, row, clip(begin, low, high) - low, row <= last)
    _put(arena, at_local_len, row, visible, row < count)
    _put(arena, at_first, row, tl.maximum(length - (end - begin), 0), row < count)
    _put(arena, at_position, row, position, is_token)
    _put(arena, at_slot, row, slot, is_token)


@triton.jit
def table_block(
    query_start_loc,
    seq_lens,
    num_rejected,
    drafts,
    pointer,
    rope_bank,
    rope_layout,
    limit,
    step,
    block,
    real,
    masked,
    rows,
    tokens,
    padded,
    later_padded,
    bank,
    max_model_len,
    SATURATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_ROTARY: tl.constexpr,
    VECTOR: tl.constexpr,
    GATHER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy the RoPE rows of one block of tokens."""
    cos, sin = tl.load(pointer), tl.load(pointer + 1)
    at_cos, at_sin = tl.load(rope_layout), tl.load(rope_layout + 1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    if step == 0:
        position, _cached, _request = first_tokens(
            query_start_loc,
            seq_lens,
            drafts,
            token,
            block * BLOCK,
            real,
            rows,
            tokens,
            masked,
            bank,
            max_model_len,
            SATURATE,
            CAUSAL,
            GATHER,
            CHUNK,
            BLOCK,
        )
        count = padded
    else:
        position, _cached, _request, _begin, _end = later_rows(
            query_start_loc,
            seq_lens,
            num_rejected,
            drafts,
            token,
            step,
            real,
            rows,
            tokens,
            masked,
            bank,
            max_model_len,
            SATURATE,
            False,
            CAUSAL,
        )
        count = later_padded
    position = tl.minimum(position, limit - 1)
    is_token = token < count
    has_cos, has_sin = is_token & (at_cos >= 0), is_token & (at_sin >= 0)
    cos_out, sin_out = rope_bank + at_cos.to(tl.int64), rope_bank + at_sin.to(tl.int64)
    if VECTOR:
        cos_to, sin_to = cos_out.to(tl.int64), sin_out.to(tl.int64)
        copy_pairs(
            cos, sin, cos_to, sin_to, position, token, has_cos, has_sin, ROTARY, BLOCK_ROTARY
        )
    else:
        cos_from, sin_from = as_floats(cos), as_floats(sin)
        copy_pair(
            cos_from,
            sin_from,
            cos_out,
            sin_out,
            position,
            token,
            has_cos,
            has_sin,
            ROTARY,
            BLOCK_ROTARY,
        )
