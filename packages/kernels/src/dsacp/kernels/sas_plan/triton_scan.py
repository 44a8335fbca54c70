"""Cost prefixes of all requests of a plan, in one pass over blocks of lanes."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import ends_of_request, until


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
def scan_requests(
    query_start_loc, seq_lens, shift, scratch, stride, paired, rows, kind, family, block_shift,
    per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Fill the scratch; return total cost, costliest row, longest query, and a bound of the total.

    Scratch of a plan, of the type that costs have, five arrays of ``stride`` entries: cost before
    every request; cost up to which a core must be allowed to swallow it, less than any limit where
    it has no cost; cost before it less ``until`` of its first row; and, for paired cores, the
    first and the third of KV blocks. The bound is float32: with it one knows whether sums wrapped.
    Lengths are taken divided by ``2 ** shift``.
    """
    dtype: tl.constexpr = scratch.dtype.element_ty
    lane = tl.arange(0, LANES)
    total = tl.full([], 0, dtype)
    blocks = tl.full([], 0, dtype)
    peak = tl.full([], 0, dtype)
    longest = tl.full([], 0, tl.int32)
    bound = tl.full([], 0.0, tl.float32)
    tl.store(scratch, total)
    tl.store(scratch + 3 * stride, blocks)
    for first in range(0, rows, LANES):
        index = first + lane
        valid = index < rows
        begin = tl.load(query_start_loc + index, mask=valid, other=0)
        query_len = tl.load(query_start_loc + index + 1, mask=valid, other=0) - begin
        seq_len = tl.load(seq_lens + index, mask=valid, other=0) >> shift
        live = (query_len > 0) & (seq_len > 0)
        query_len = tl.where(live, query_len, 1)
        many = tl.max(query_len, 0)
        longest = tl.maximum(longest, many)
        query_len = query_len.to(dtype)
        seq_len = tl.where(live, seq_len, 1).to(dtype)
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
        largest = tl.where(live, largest, 0)
        cost = tl.where(live, cost, 0)
        end = total + tl.cumsum(cost, 0)
        # A request without cost is swallowed with its predecessor: no limit keeps it out.
        key = tl.where(largest > 0, end - (last >> 1), -1)
        tl.store(scratch + 1 + index, end, mask=valid)
        tl.store(scratch + stride + index, key, mask=valid)
        tl.store(scratch + 2 * stride + index, end - cost - base, mask=valid)
        if paired > 0:
            number = tl.where(live, number, 0)
            block_end = blocks + tl.cumsum(number, 0)
            tl.store(scratch + 3 * stride + 1 + index, block_end, mask=valid)
            tl.store(scratch + 4 * stride + index, block_end - number - base_blocks, mask=valid)
            blocks = tl.max(block_end, 0)
        total = tl.max(end, 0)
        peak = tl.maximum(peak, tl.max(largest, 0))
        count = tl.where(kind == 1, (query_len + 3) >> 2, query_len)
        bound += tl.sum(count.to(tl.float32) * largest.to(tl.float32), 0)
    return total, peak, longest, bound
