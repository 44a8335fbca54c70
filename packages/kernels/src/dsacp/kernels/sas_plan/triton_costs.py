"""Row costs on the device: the closed forms of ``sas_costs`` and ``qli_costs`` over lanes.

Costs have the type of the token counts. In int32 the sums wrap inside a request, and a difference
of two is right all the same as long as it fits; KV lengths stay below 2 ** 30. Divisors are powers
of two, so that no vector is divided.
"""

import triton
import triton.language as tl


@triton.jit
def floor_sum(count, shift):
    """Sum of ``j >> shift`` over ``j = 0..count-1``."""
    quotient = count >> shift
    # Half of q * (q + 1), halved before a product that may wrap.
    return quotient * count - ((((quotient + 1) >> 1) * (quotient | 1)) << shift)


@triton.jit
def ceil_sum(count, ratio_shift, shift):
    """Sum of ``ceil((n >> ratio_shift) / 2 ** shift)`` over ``n = 1..count``."""
    return floor_sum(count + (((1 << shift) - 1) << ratio_shift) + 1, ratio_shift + shift)


@triton.jit
def window_sum(end, seq_len, shift, span, reach):
    """Window blocks of ``2 ** shift`` keys of all rows up to an end, counted from an end of 1."""
    rising = tl.minimum(seq_len, span)
    inside = tl.minimum(end, rising)
    falling = tl.maximum(end - tl.maximum(seq_len, span), 0)
    total = ceil_sum(inside, 0, shift)
    at = (rising + (1 << shift) - 1) >> shift
    if reach > 0:
        # Past the last key the window only loses keys on its left.
        lost = total - at - ceil_sum(tl.maximum(rising - 1 - falling, 0), 0, shift)
        total += tl.where(falling > 0, lost, 0)
    return total + (end - inside - falling) * at


@triton.jit
def compressed_sum(end, seq_len, shift, ratio_shift, cap):
    """The same of the compressed part."""
    flat = tl.minimum(seq_len, cap)
    grown = tl.minimum(end, flat)
    at = ((flat >> ratio_shift) + (1 << shift) - 1) >> shift
    return ceil_sum(grown, ratio_shift, shift) + (end - grown) * at


@triton.jit
def sas_row(end, seq_len, block_shift, per_block, span, ratio_shift, cap):
    """Cost of the row of an end, and of its last KV block; both 0 for a row that sees nothing."""
    stop = tl.minimum(end, seq_len)
    window = stop - tl.maximum(end - span, 0)
    compressed = tl.where(ratio_shift > 0, tl.minimum(stop, cap) >> ratio_shift, 0)
    full = (1 << block_shift) - 1
    blocks = ((window + full) >> block_shift) + ((compressed + full) >> block_shift)
    cost = per_block * blocks + 10 * (((window + 63) >> 6) + ((compressed + 63) >> 6))
    tokens = tl.where(compressed > 0, compressed, window)
    last = per_block + 10 * ((((tokens - 1) & full) + 64) >> 6)
    return tl.where(end > 0, cost, 0), tl.where(end > 0, last, 0)


@triton.jit
def qli_cost(tokens, end, family, ratio_shift):
    """Cost of a row of ``tokens`` query tokens that sees ``end`` raw keys."""
    keys = end >> ratio_shift
    a5 = 24 * tokens * ((keys + 127) >> 7) + 10 * ((keys + 63) >> 6)
    a2 = 768 * ((keys + 2047) >> 11) + 512 * ((keys + 1023) >> 11) + (keys >> 1)
    return tl.where(family == 1, a5, tokens * a2)


@triton.jit
def qli_last(tokens, end, family, ratio_shift):
    """Cost of the last KV block of such a row."""
    keys = end >> ratio_shift
    tail = ((keys - 1) & (2047 - 1920 * family)) + 1
    return tl.where(keys > 0, qli_cost(tokens, tail << ratio_shift, family, ratio_shift), 0)


@triton.jit
def qli_term(base, row, shift):
    """Sum of ``(4 * y + base) >> shift`` over ``y <= row``, up to a constant of ``base``."""
    wide = floor_sum((base >> 2) + row + 1, tl.maximum(shift - 2, 0))
    return tl.where(shift >= 2, wide, row * (row + 1) + row * (base >> 1))


@triton.jit
def qli_until(row, query_len, seq_len, family, ratio_shift):
    """Cost of the first ``row`` rows of four query tokens, up to a constant of the request."""
    shift = seq_len - query_len
    outside = tl.maximum((0 - shift) >> 2, 0)
    total = tl.minimum(row, outside) * qli_cost(4, shift * 0 + 1, family, ratio_shift)
    row = tl.maximum(row, outside)
    if family == 1:
        total += 96 * qli_term(shift + (127 << ratio_shift), row, ratio_shift + 7)
        total += 10 * qli_term(shift + (63 << ratio_shift), row, ratio_shift + 6)
    else:
        total += 3072 * qli_term(shift + (2047 << ratio_shift), row, ratio_shift + 11)
        total += 2048 * qli_term(shift + (1023 << ratio_shift), row, ratio_shift + 11)
        total += 4 * qli_term(shift, row, ratio_shift + 1)
    return tl.where(seq_len >= (1 << ratio_shift), total, 0)


@triton.jit
def until(
    row, query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
):
    """Cost and KV blocks of a request's rows before ``row``, each up to a constant of the request.

    ``row`` does not pass a short last row of the indexer, whose blocks are not counted either.
    """
    if kind == 1:
        cost = qli_until(row, query_len, seq_len, family, ratio_shift)
        blocks = cost
    else:
        end = tl.maximum(seq_len - query_len + reach + row, 0)
        blocks = window_sum(end, seq_len, block_shift, span, reach)
        lanes = window_sum(end, seq_len, 6, span, reach)
        if ratio_shift > 0:
            blocks += compressed_sum(end, seq_len, block_shift, ratio_shift, cap)
            lanes += compressed_sum(end, seq_len, 6, ratio_shift, cap)
        cost = per_block * blocks + 10 * lanes
    return cost, blocks


@triton.jit
def row_costs(
    row, query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
):
    """Cost of ``row``, which is not a request's last, and of its last KV block."""
    if kind == 1:
        end = tl.maximum(4 * (row + 1) + seq_len - query_len, 1)
        cost = qli_cost(4, end, family, ratio_shift)
        last = qli_last(4, end, family, ratio_shift)
    else:
        end = seq_len - query_len + reach + row + 1
        cost, last = sas_row(end, seq_len, block_shift, per_block, span, ratio_shift, cap)
    return cost, last


@triton.jit
def ends_of_request(
    query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
):
    """Of whole requests: cost of a short last row, of the last KV block, and of the worst row."""
    if kind == 1:
        tokens = ((query_len - 1) & 3) + 1
        peak = qli_cost(tokens, seq_len, family, ratio_shift)
        short = tl.where(tokens < 4, peak, 0)
        last = qli_last(tokens, seq_len, family, ratio_shift)
        before = qli_cost(4, tl.maximum(seq_len - tokens, 1), family, ratio_shift)
        peak = tl.maximum(peak, tl.where(query_len > 4, before, 0))
    else:
        end = seq_len + reach
        peak, last = sas_row(end, seq_len, block_shift, per_block, span, ratio_shift, cap)
        short = peak * 0
        if reach > 0:
            widest = tl.minimum(tl.maximum(seq_len, span), end)
            widest = tl.maximum(widest, end - query_len + 1)
            peak, _ = sas_row(widest, seq_len, block_shift, per_block, span, ratio_shift, cap)
    return short, last, peak
