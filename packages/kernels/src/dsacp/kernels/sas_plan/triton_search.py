"""Searches of the device planner: all lanes for one cursor, or one cursor a lane.

Scratch of a plan, int64, each of ``stride`` entries: cost before every request; cost up to which a
core must be allowed to swallow it; cost before it less the constant of ``until``; and the first and
third of KV blocks.
"""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import ends_of_request, row_last, until


@triton.jit
def larger(left, right):
    """Combine of a running maximum."""
    return tl.maximum(left, right)


@triton.jit
def scan_requests(
    query_start_loc, seq_lens, scratch, stride, rows, kind, family, block_shift, per_block, span,
    reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Fill the scratch; return total cost, costliest row and most rows of a request."""
    lane = tl.arange(0, LANES)
    total = tl.full([], 0, tl.int64)
    blocks = tl.full([], 0, tl.int64)
    swallow = tl.full([], 0, tl.int64)
    peak = tl.full([], 0, tl.int64)
    longest = tl.full([], 0, tl.int32)
    tl.store(scratch, total)
    tl.store(scratch + 3 * stride, blocks)
    for first in range(0, rows, LANES):
        index = first + lane
        valid = index < rows
        begin = tl.load(query_start_loc + index, mask=valid, other=0)
        query_len = tl.load(query_start_loc + index + 1, mask=valid, other=0) - begin
        seq_len = tl.load(seq_lens + index, mask=valid, other=0)
        live = (query_len > 0) & (seq_len > 0)
        query_len = tl.where(live, query_len, 1).to(tl.int64)
        seq_len = tl.where(live, seq_len, 1).to(tl.int64)
        whole = tl.where(kind == 1, query_len >> 2, query_len)
        cost = seq_len * 0
        number = seq_len * 0
        base = seq_len * 0
        base_blocks = seq_len * 0
        for side in range(0, 2):
            # At the first row, then at the end: a loop keeps one copy of the closed form.
            base, base_blocks = cost, number
            cost, number = until(
                whole * side, query_len, seq_len, kind, family, block_shift, per_block, span,
                reach, ratio_shift, cap,
            )  # fmt: skip
        short, last, largest = ends_of_request(
            query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift, cap
        )
        cost = tl.where(live, cost - base + short, 0)
        number = tl.where(live, number - base_blocks, 0)
        end = total + tl.cumsum(cost, 0)
        block_end = blocks + tl.cumsum(number, 0)
        # A request without cost keeps the key before it and is swallowed with its predecessor.
        key = tl.maximum(tl.where(cost > 0, end - (last >> 1), 0), swallow)
        key = tl.associative_scan(key, 0, larger)
        tl.store(scratch + 1 + index, end, mask=valid)
        tl.store(scratch + stride + index, key, mask=valid)
        tl.store(scratch + 2 * stride + index, end - cost - base, mask=valid)
        tl.store(scratch + 3 * stride + 1 + index, block_end, mask=valid)
        tl.store(scratch + 4 * stride + index, block_end - number - base_blocks, mask=valid)
        total += tl.sum(cost, 0)
        blocks += tl.sum(number, 0)
        swallow = tl.max(key, 0)
        seen = cost > 0
        peak = tl.maximum(peak, tl.max(tl.where(seen, largest, 0), 0))
        longest = tl.maximum(longest, tl.max(tl.where(seen, query_len, 0), 0).to(tl.int32))
    return total, peak, longest


@triton.jit
def count_requests(marks, low, high, limit, LANES: tl.constexpr):
    """First request in ``[low, high)`` whose mark exceeds ``limit``, or ``high``."""
    lane = tl.arange(0, LANES)
    while low < high:
        step = (high - low + (LANES - 1)) // LANES
        probe = low + lane * step + (step - 1)
        mark = tl.load(marks + probe, mask=probe < high, other=0)
        passed = tl.sum(((probe < high) & (mark <= limit)).to(tl.int32), 0)
        low = low + passed * step
        high = tl.minimum(high, low + step - 1)
    return low


@triton.jit
def count_rows(
    low, high, limit, used, counted, origin, block_origin, half, query_len, seq_len, kind, family,
    block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """First row in ``[low, high)`` whose end exceeds ``limit``, or ``high``; cost and blocks there.

    ``used`` and ``counted`` are cost and blocks at ``low``.
    """
    lane = tl.arange(0, LANES)
    while low < high:
        step = (high - low + (LANES - 1)) // LANES
        probe = low + lane * step + (step - 1)
        row = probe.to(tl.int64)
        cost, blocks = until(
            row + 1, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap,
        )  # fmt: skip
        last = row_last(
            row, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap,
        )  # fmt: skip
        cost += origin
        passes = (probe < high) & (cost - tl.where(half > 0, last >> 1, 0) <= limit)
        passed = tl.sum(passes.to(tl.int32), 0)
        used = tl.maximum(used, tl.max(tl.where(passes, cost, 0), 0))
        counted = tl.maximum(counted, tl.max(tl.where(passes, blocks + block_origin, 0), 0))
        low = low + passed * step
        high = tl.minimum(high, low + step - 1)
    return low, used, counted


@triton.jit
def lanes_fit(
    bound, total, cores, query_start_loc, seq_lens, scratch, stride, rows, request_bits, row_bits,
    kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
):  # fmt: skip
    """Whether ``cores`` cores, each filled up to its lane's bound, hold the batch."""
    request = bound.to(tl.int32) * 0
    used = bound * 0
    for _core in range(0, cores):
        limit = tl.minimum(used + bound, total)
        request = request * 0
        for level in range(0, request_bits):
            probe = request + (1 << (request_bits - 1 - level))
            mark = tl.load(scratch + probe, mask=probe <= rows, other=0)
            request = tl.where((probe <= rows) & (mark <= limit), probe, request)
        used = tl.load(scratch + request)
        if row_bits > 0:
            inside = request < rows
            begin = tl.load(query_start_loc + request, mask=inside, other=0)
            query_len = tl.load(query_start_loc + request + 1, mask=inside, other=0) - begin
            seq_len = tl.load(seq_lens + request, mask=inside, other=0).to(tl.int64)
            origin = tl.load(scratch + 2 * stride + request, mask=inside, other=0)
            last_row = tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1
            row = request * 0
            for level in range(0, row_bits):
                probe = row + (1 << (row_bits - 1 - level))
                cost, _blocks = until(
                    probe.to(tl.int64), query_len.to(tl.int64), seq_len, kind, family, block_shift,
                    per_block, span, reach, ratio_shift, cap,
                )  # fmt: skip
                cost += origin
                passes = inside & (probe <= last_row) & (cost <= limit)
                row = tl.where(passes, probe, row)
                used = tl.where(passes, cost, used)
    return used >= total
