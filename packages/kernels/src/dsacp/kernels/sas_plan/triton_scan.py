"""Cost prefixes of all requests of a plan, in one pass over blocks of lanes."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import ends_of_request, row_costs, until


@triton.jit
def larger(left, right):
    """Combine of a running maximum."""
    return tl.maximum(left, right)


@triton.jit
def request_sums(
    query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
):
    """Cost and KV blocks of the whole rows of requests, and ``until`` at their first row."""
    whole = tl.where(kind == 1, query_len >> 2, query_len)
    # Values of their own: Triton loses track of loop variables that start as one value.
    cost = seq_len * 0
    blocks = seq_len * 0
    base = seq_len * 0
    base_blocks = seq_len * 0
    for side in range(0, 2):
        # At the first row, then at the end: a loop keeps one copy of the closed form.
        base, base_blocks = cost, blocks
        cost, blocks = until(
            whole * side, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap,
        )  # fmt: skip
    return cost - base, blocks - base_blocks, base, base_blocks


@triton.jit
def flatten_rows(
    flat, first, room, cost, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
    ratio_shift, cap,
):  # fmt: skip
    """Write the costs of all rows of short requests, from index ``first``; return the index after.

    More than eight rows of a request are no longer short: then, and where there is no ``room``, an
    index past it comes back.
    """
    rows = tl.where(kind == 1, (query_len + 3) >> 2, query_len)
    rows = tl.where(cost > 0, rows, 0).to(tl.int32)
    end = first + tl.cumsum(rows, 0)
    most = tl.max(rows, 0)
    spent = cost * 0
    for row in range(0, tl.minimum(most, 8)):
        one, _last = row_costs(
            spent * 0 + row, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap,
        )  # fmt: skip
        one = tl.where(row == rows - 1, cost - spent, one)
        spent += one
        at = end - rows + row
        tl.store(flat + at, one, mask=(row < rows) & (at < room))
    return tl.where(most > 8, room + 1, tl.max(end, 0))


@triton.jit
def scan_requests(
    query_start_loc, seq_lens, scratch, stride, room, paired, policy, rows, kind, family,
    block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Fill the scratch; return total cost, costliest row, longest query, short rows.

    Scratch of a plan, int64, each of ``stride`` entries: cost before every request; cost up to
    which a core must be allowed to swallow it; cost before it less ``until`` of its first row; and,
    for paired cores, the first and the third of KV blocks. For the balanced policy, ``room`` costs
    of single rows follow; more rows than that are not short.
    """
    lane = tl.arange(0, LANES)
    total = tl.full([], 0, tl.int64)
    blocks = tl.full([], 0, tl.int64)
    swallow = tl.full([], 0, tl.int64)
    peak = tl.full([], 0, tl.int64)
    longest = tl.full([], 0, tl.int32)
    flat = tl.full([], 0, tl.int32)
    tl.store(scratch, total)
    tl.store(scratch + 3 * stride, blocks)
    for first in range(0, rows, LANES):
        index = first + lane
        valid = index < rows
        begin = tl.load(query_start_loc + index, mask=valid, other=0)
        query_len = tl.load(query_start_loc + index + 1, mask=valid, other=0) - begin
        seq_len = tl.load(seq_lens + index, mask=valid, other=0)
        live = (query_len > 0) & (seq_len > 0)
        query_len = tl.where(live, query_len, 1)
        many = tl.max(query_len, 0)
        longest = tl.maximum(longest, many)
        query_len = query_len.to(tl.int64)
        seq_len = tl.where(live, seq_len, 1).to(tl.int64)
        short, last, largest = ends_of_request(
            query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
        )
        cost = largest
        number = cost * 0
        base = cost * 0
        base_blocks = cost * 0
        if (many > 1) | (paired > 0):
            cost, number, base, base_blocks = request_sums(
                query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift,
                cap,
            )  # fmt: skip
            cost += short
        cost = tl.where(live, cost, 0)
        end = total + tl.cumsum(cost, 0)
        # A request without cost keeps the key before it and is swallowed with its predecessor.
        key = tl.maximum(tl.where(cost > 0, end - (last >> 1), 0), swallow)
        key = tl.associative_scan(key, 0, larger)
        tl.store(scratch + 1 + index, end, mask=valid)
        tl.store(scratch + stride + index, key, mask=valid)
        tl.store(scratch + 2 * stride + index, end - cost - base, mask=valid)
        if paired > 0:
            number = tl.where(live, number, 0)
            block_end = blocks + tl.cumsum(number, 0)
            tl.store(scratch + 3 * stride + 1 + index, block_end, mask=valid)
            tl.store(scratch + 4 * stride + index, block_end - number - base_blocks, mask=valid)
            blocks = tl.max(block_end, 0)
        if (policy == 1) & (flat <= room):
            flat = flatten_rows(
                scratch + 5 * stride, flat, room, cost, query_len, seq_len, kind, family,
                block_shift, per_block, span, reach, ratio_shift, cap,
            )  # fmt: skip
        total = tl.max(end, 0)
        swallow = tl.max(key, 0)
        peak = tl.maximum(peak, tl.max(tl.where(cost > 0, largest, 0), 0))
    return total, peak, longest, flat
