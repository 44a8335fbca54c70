"""Searches of the device planner: all lanes for one cursor, or one cursor a lane."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import row_costs, until


@triton.jit
def count_requests(marks, starts, low, high, limit, used, LANES: tl.constexpr):
    """First request in ``[low, high)`` whose mark exceeds ``limit``, or ``high``; the cost there.

    ``used`` is the cost at ``low``. Neighbours are tried first: a core takes few of many requests.
    """
    lane = tl.arange(0, LANES)
    step = 1
    while low < high:
        probe = low + lane * step + (step - 1)
        inside = probe < high
        mark = tl.load(marks + probe, mask=inside, other=0).to(limit.dtype)
        start = tl.load(starts + 1 + probe, mask=inside, other=0).to(limit.dtype)
        passes = inside & (mark <= limit)
        passed = tl.sum(passes.to(tl.int32), 0)
        used = tl.maximum(used, tl.max(tl.where(passes, start, 0), 0))
        low = low + passed * step
        high = tl.where(passed == LANES, high, tl.minimum(high, low + step - 1))
        step = tl.maximum((high - low + (LANES - 1)) // LANES, 1)
    return low, used


@triton.jit
def narrow_rows(
    low, high, rest, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
    ratio_shift, cap,
):  # fmt: skip
    """Range of the first row whose end exceeds ``rest``, where rows only grow dearer."""
    cost, _ = row_costs(
        low.to(rest.dtype), query_len, seq_len, kind, family, block_shift, per_block, span, reach,
        ratio_shift, cap,
    )  # fmt: skip
    # A row may exceed the rest by half of its last block, hence by half of its cost. Quotients
    # are float32, which the margins of two rows make up for.
    most = (rest.to(tl.float32) / tl.maximum(cost, 1).to(tl.float32)).to(tl.int32) + 3
    high = tl.where((cost > 0) & (most < high - low), low + most, high)
    cost, _ = row_costs(
        high.to(rest.dtype), query_len, seq_len, kind, family, block_shift, per_block, span, reach,
        ratio_shift, cap,
    )  # fmt: skip
    least = (rest.to(tl.float32) / tl.maximum(cost, 1).to(tl.float32)).to(tl.int32) - 3
    return tl.minimum(low + tl.maximum(least, 0), high), high


@triton.jit
def count_rows(
    low, high, limit, used, origin, half, query_len, seq_len, kind, family, block_shift, per_block,
    span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """First row in ``[low, high)`` whose end exceeds ``limit``, or ``high``, and the cost there.

    ``used`` is the cost at ``low``.
    """
    lane = tl.arange(0, LANES)
    if (high - low > LANES) & (reach == 0):
        low, high = narrow_rows(
            low, high, limit - used, query_len, seq_len, kind, family, block_shift, per_block, span,
            reach, ratio_shift, cap,
        )  # fmt: skip
    while low < high:
        step = (high - low + (LANES - 1)) // LANES
        probe = low + lane * step + (step - 1)
        row = probe.to(limit.dtype)
        cost, _blocks = until(
            row + 1, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap,
        )  # fmt: skip
        _cost, last = row_costs(
            row, query_len, seq_len, kind, family, block_shift, per_block, span, reach, ratio_shift,
            cap,
        )  # fmt: skip
        cost += origin
        passes = (probe < high) & (cost - tl.where(half > 0, last >> 1, 0) <= limit)
        passed = tl.sum(passes.to(tl.int32), 0)
        used = tl.maximum(used, tl.max(tl.where(passes, cost, 0), 0))
        low = low + passed * step
        high = tl.minimum(high, low + step - 1)
    return low, used


@triton.jit
def lane_rows(
    row, last_row, limit, used, origin, query_len, seq_len, kind, family, block_shift, per_block,
    span, reach, ratio_shift, cap,
):  # fmt: skip
    """Last row in ``[row, last_row]`` before which no more than ``limit`` is spent, a lane.

    Newton steps inside a bracket: rows of a request cost nearly the same. Also returns the cost
    before that row; ``used`` is the cost before ``row``.
    """
    high = last_row + 1
    slope, _last = row_costs(
        row.to(limit.dtype), query_len, seq_len, kind, family, block_shift, per_block, span, reach,
        ratio_shift, cap,
    )  # fmt: skip
    guess = row + ((limit - used).to(tl.float32) / tl.maximum(slope, 1).to(tl.float32)).to(tl.int32)
    turn = 0
    open_rows = 1
    while open_rows > 0:
        middle = tl.minimum(tl.maximum(guess, row + 1), high - 1)
        cost, _blocks = until(
            middle.to(limit.dtype), query_len, seq_len, kind, family, block_shift, per_block, span,
            reach, ratio_shift, cap,
        )  # fmt: skip
        cost += origin
        fails = (cost > limit).to(tl.int32)
        slope, _last = row_costs(
            (middle - fails).to(limit.dtype), query_len, seq_len, kind, family, block_shift,
            per_block, span, reach, ratio_shift, cap,
        )  # fmt: skip
        # One row further, or one row back, is on the other side of the limit: done.
        back = (fails > 0) & (cost - slope <= limit)
        done = (fails == 0) & (cost + slope > limit)
        row = tl.where(fails > 0, tl.where(back, middle - 1, row), middle)
        used = tl.where(fails > 0, tl.where(back, cost - slope, used), cost)
        high = tl.where(fails > 0, middle, tl.where(done, middle + 1, high))
        rest = (limit - cost).to(tl.float32) / tl.maximum(slope, 1).to(tl.float32)
        guess = tl.where(turn < 5, middle + rest.to(tl.int32) - fails, (row + high) >> 1)
        turn += 1
        open_rows = tl.max(high - row, 0) - 1
    return row, used


@triton.jit
def lanes_walk(bound, cores, flat, count):
    """Whether ``cores`` cores, each filled up to its lane's bound, hold the rows of ``flat``."""
    used = bound * 0
    opened = bound.to(tl.int32) * 0 + 1
    for first in range(0, count, 8):
        for index in tl.static_range(8):
            at = first + index
            cost = tl.load(flat + at, mask=at < count, other=0).to(bound.dtype)
            fits = used + cost <= bound
            used = tl.where(fits, used + cost, cost)
            opened += tl.where(fits, 0, 1)
    return opened <= cores


@triton.jit
def lanes_fit(
    bound, total, cores, query_start_loc, seq_lens, scratch, stride, rows, bits, longest, kind,
    family, block_shift, per_block, span, reach, ratio_shift, cap,
):  # fmt: skip
    """Whether ``cores`` cores, each filled up to its lane's bound, hold the batch."""
    request = bound.to(tl.int32) * 0
    row = bound.to(tl.int32) * 0
    used = bound * 0
    for _core in range(0, cores):
        limit = tl.minimum(used + bound, total)
        after = bound.to(tl.int32) * 0
        for bit in range(0, bits):
            probe = after + (1 << (bits - 1 - bit))
            mark = tl.load(scratch + probe, mask=probe <= rows, other=0).to(bound.dtype)
            after = tl.where((probe <= rows) & (mark <= limit), probe, after)
        moved = after > request
        request = after
        row = tl.where(moved, 0, row)
        used = tl.where(moved, tl.load(scratch + request).to(bound.dtype), used)
        if longest > 1:
            inside = request < rows
            begin = tl.load(query_start_loc + request, mask=inside, other=0)
            query_len = tl.load(query_start_loc + request + 1, mask=inside, other=1) - begin
            seq_len = tl.load(seq_lens + request, mask=inside, other=1)
            origin = tl.load(scratch + 2 * stride + request, mask=inside, other=0)
            last_row = tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1
            row, spent = lane_rows(
                row, tl.where(inside, last_row, row), limit, used, origin.to(bound.dtype),
                query_len.to(bound.dtype), seq_len.to(bound.dtype), kind, family, block_shift,
                per_block, span, reach, ratio_shift, cap,
            )  # fmt: skip
            used = tl.where(inside, spent, used)
    return used >= total
