"""Searches of the device planner: all lanes for one cursor, or one cursor a lane."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import row_costs, until


@triton.jit
def pass_requests(starts, keys, first, rows, limit, LANES: tl.constexpr):
    """How many of ``LANES`` requests from ``first`` on ``limit`` lets pass, and the cost after."""
    lane = tl.arange(0, LANES)
    inside = first + lane < rows
    key = tl.load(keys + first + lane, mask=inside, other=0)
    end = tl.load(starts + 1 + first + lane, mask=inside, other=0)
    passes = inside & (key <= limit)
    over = tl.min(tl.where(passes, LANES, lane), 0)
    # What has no cost passes wherever it stands.
    return over, tl.max(tl.where(passes & (key >= 0), end, 0), 0)


@triton.jit
def next_marks(starts, first, rows, limit, LANES: tl.constexpr):
    """First request of the next block that may have one which ``limit`` keeps out."""
    lane = tl.arange(0, LANES)
    # A mask of scaled lanes would be dropped on Ascend, and every mark read.
    inside = lane < (rows - first) // LANES - 1
    mark = tl.load(starts + first + (lane + 2) * LANES, mask=inside, other=0)
    passes = inside & (mark <= limit)
    return first + (1 + tl.sum(passes.to(tl.int32), 0)) * LANES


@triton.jit
def whole_requests(scratch, stride, first, rows, limit, used, LANES: tl.constexpr):
    """Request that ``limit`` keeps out, where the block before it begins, and the cost before it.

    ``first`` is at or before the block to begin with, and ``used`` the cost there or more.
    """
    keys = scratch + stride
    over, spent = pass_requests(scratch, keys, first, rows, limit, LANES)
    while over == LANES:
        first = next_marks(scratch, first, rows, limit, LANES)
        spent = tl.maximum(spent, tl.load(scratch + tl.minimum(first, rows)))
        over, more = pass_requests(scratch, keys, first, rows, limit, LANES)
        spent = tl.maximum(spent, more)
    return first, tl.minimum(first + over, rows), tl.maximum(used, spent)


@triton.jit
def quotient(rest, cost):
    """Rows of one cost in ``rest``, in float32, which margins of two rows make up for."""
    return (rest.to(tl.float32) / tl.maximum(cost, 1).to(tl.float32)).to(tl.int32)


@triton.jit
def narrow_rows(
    low, high, rest, peak, query_len, seq_len, kind, family, block_shift, per_block, span, reach,
    ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Range of the first row whose end exceeds ``rest``, where rows only grow dearer.

    No row costs more than ``peak``; where that is not close enough the last of the range tells.
    """
    cost, _ = row_costs(
        low.to(rest.dtype), query_len, seq_len, kind, family, block_shift, per_block, span, reach,
        ratio_shift, cap,
    )  # fmt: skip
    # A row may exceed the rest by half of its last block, hence by half of its cost.
    most = quotient(rest, cost) + 3
    top = tl.where((cost > 0) & (most < high - low), low + most, high)
    least = quotient(rest, peak) - 3
    if top - low - least > LANES:
        cost, _ = row_costs(
            top.to(rest.dtype), query_len, seq_len, kind, family, block_shift, per_block, span,
            reach, ratio_shift, cap,
        )  # fmt: skip
        least = quotient(rest, cost) - 3
    return tl.minimum(low + tl.maximum(least, 0), top), top


@triton.jit
def count_rows(
    low, high, limit, used, peak, origin, query_len, seq_len, kind, family, block_shift, per_block,
    span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """First row in ``[low, high)`` whose end exceeds ``limit``, or ``high``, and the cost there.

    ``used`` is the cost at ``low``.
    """
    lane = tl.arange(0, LANES)
    if (high - low > LANES) & (reach == 0):
        low, high = narrow_rows(
            low, high, limit - used, peak, query_len, seq_len, kind, family, block_shift, per_block,
            span, reach, ratio_shift, cap, LANES,
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
        passes = (probe < high) & (cost - (last >> 1) <= limit)
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
def lanes_fit(
    bound, total, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows, bits,
    longest, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
    LANES: tl.constexpr, MAX_CORES: tl.constexpr,
):  # fmt: skip
    """Cores that hold the batch, each filled up to its lane's bound; too many where they do not.

    Their ends (request and row) go to ``ends`` [2, MAX_CORES, LANES].
    """
    ends += tl.arange(0, LANES)
    request = bound.to(tl.int32) * 0
    row = bound.to(tl.int32) * 0
    opened = bound.to(tl.int32) * 0
    used = bound * 0
    for core in range(0, cores):
        opened += (used < total).to(tl.int32)
        limit = tl.minimum(used + bound, total)
        after = bound.to(tl.int32) * 0
        for bit in range(0, bits):
            probe = after + (1 << (bits - 1 - bit))
            mark = tl.load(scratch + tl.minimum(probe, rows))
            after = tl.where((probe <= rows) & (mark <= limit), probe, after)
        moved = after > request
        request = after
        row = tl.where(moved, 0, row)
        used = tl.where(moved, tl.load(scratch + request), used)
        if longest > 1:
            inside = request < rows
            there = tl.minimum(request, rows - 1)
            begin = tl.load(query_start_loc + there, mask=inside, other=0)
            query_len = tl.load(query_start_loc + there + 1, mask=inside, other=1) - begin
            seq_len = tl.load(seq_lens + there, mask=inside, other=1) >> shift
            origin = tl.load(scratch + 2 * stride + there, mask=inside, other=0)
            last_row = tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1
            row, spent = lane_rows(
                row, tl.where(inside, last_row, row), limit, used, origin,
                query_len.to(bound.dtype), seq_len.to(bound.dtype), kind, family, block_shift,
                per_block, span, reach, ratio_shift, cap,
            )  # fmt: skip
            used = tl.where(inside, spent, used)
        tl.store(ends + core * LANES, request)
        tl.store(ends + (MAX_CORES + core) * LANES, row)
    return tl.where(used < total, cores + 1, opened)
