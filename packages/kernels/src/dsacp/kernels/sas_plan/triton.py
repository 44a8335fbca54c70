"""Triton planner: one program a plan, one scan over its requests, two searches a core."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.sas_plan.table import MAX_ROWS, check_plans
from dsacp.kernels.sas_plan.triton_search import (
    count_requests,
    count_rows,
    lanes_fit,
    scan_requests,
)

LANES = 256
WARPS = 4
ARRAYS = 5
"""Arrays of the scratch, see ``triton_search``."""


@triton.jit
def _bits(value, limit: tl.constexpr):
    """Binary digits of a scalar below ``2 ** limit``."""
    count = value * 0
    for power in tl.static_range(0, limit):
        count += (value >= (1 << power)).to(tl.int32)
    return count


@triton.jit
def _least_bound(
    total, peak, cores, query_start_loc, seq_lens, scratch, stride, rows, longest, kind, family,
    block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Smallest cost of a core under which the cores hold the batch; lanes probe candidates."""
    share = (total + (cores - 1)) // cores
    low = tl.maximum(peak, share)
    # Filled under this bound, every core but the last holds its share or more.
    high = tl.maximum(low, share + peak - 1)
    request_bits = _bits(rows, 15)
    row_bits = _bits(longest - 1, 30)
    lane = tl.arange(0, LANES).to(tl.int64)
    while low < high:
        step = (high - low + LANES) // LANES
        bound = tl.minimum(low + lane * step + (step - 1), high)
        fits = lanes_fit(
            bound, total, cores, query_start_loc, seq_lens, scratch, stride, rows, request_bits,
            row_bits, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
        )  # fmt: skip
        low = low + tl.sum(tl.where(fits, 0, 1), 0) * step
        high = tl.minimum(high, low + step - 1)
    return high


@triton.jit
def _split(
    query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, cores, policy,
    record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
    LANES: tl.constexpr,
):  # fmt: skip
    """Write the records of all cores."""
    bound = peak
    if policy == 1:
        bound = _least_bound(
            total, peak, cores, query_start_loc, seq_lens, scratch, stride, rows, longest, kind,
            family, block_shift, per_block, span, reach, ratio_shift, cap, LANES,
        )  # fmt: skip
    marks = scratch + tl.where(policy == 1, 1, stride)
    field = tl.arange(0, 8)
    core = 0
    request = 0
    row = 0
    used = total * 0
    counted = total * 0
    most = total * 0
    while (core < cores) & (used < total):
        share = tl.where(policy == 1, 0, (total - used) // (cores - core))
        limit = used + tl.maximum(share, bound)
        words = tl.where(field == 0, 1, 0)
        words = tl.where(field == 1, request, words)
        words = tl.where(field == 2, row, words)
        before = counted
        after = count_requests(marks, request, rows, limit, LANES)
        row = tl.where(after > request, 0, row)
        used = tl.where(after > request, tl.load(scratch + after), used)
        counted = tl.where(after > request, tl.load(scratch + 3 * stride + after), counted)
        request = after
        if (longest > 1) & (request < rows):
            begin = tl.load(query_start_loc + request)
            query_len = tl.load(query_start_loc + request + 1) - begin
            row, used, counted = count_rows(
                row, tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1, limit, used, counted,
                tl.load(scratch + 2 * stride + request), tl.load(scratch + 4 * stride + request),
                1 - policy, query_len.to(tl.int64), tl.load(seq_lens + request).to(tl.int64), kind,
                family, block_shift, per_block, span, reach, ratio_shift, cap, LANES,
            )  # fmt: skip
        request = tl.where(used < total, request, rows)
        row = tl.where(used < total, row, 0)
        most = tl.maximum(most, counted - before)
        words = tl.where(field == 4, request, words)
        words = tl.where(field == 5, row, words)
        at = out + record * core * (1 + paired)
        tl.store(at + field, words, mask=field < 7)
        tl.store(at + record + field, words, mask=(field < 7) & (paired > 0))
        core += 1
    # Idle pairs take part in the hand-shake too.
    physical = tl.arange(0, 64)
    paired_core = (physical < 2 * cores) & (paired > 0)
    tl.store(out + record * physical + 8, most.to(tl.int32), mask=paired_core)


@triton.jit
def _plan(
    query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at, out_at, rows,
    kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    LANES: tl.constexpr,
):  # fmt: skip
    """Plan one row of the table."""
    query_start_loc += starts_at
    seq_lens += lens_at
    out += out_at
    rows = tl.minimum(rows, capacity)
    stride = capacity + 1
    scratch += program.to(tl.int64) * (5 * stride)
    wide = ((kind == 0) & (family == 1)).to(tl.int32)
    paired = wide * (heads == 128).to(tl.int32)
    cores = num_cores >> paired
    block_shift = 9 - 2 * family
    per_block = 6 * ((heads + 15) >> 4)
    reach = window_right
    span = window_left.to(tl.int64) + reach + 1
    ratio_shift = _bits(ratio, 8) - 1
    cap = tl.where(topk > 0, topk.to(tl.int64) << ratio_shift, 1 << 40)
    tl.store(out + tl.arange(0, 1024), tl.zeros((1024,), tl.int32))
    total, peak, longest = scan_requests(
        query_start_loc, seq_lens, scratch, stride, rows, kind, family, block_shift, per_block,
        span, reach, ratio_shift, cap, LANES,
    )  # fmt: skip
    longest = tl.where(kind == 1, (longest + 3) >> 2, longest)
    # Prefixes and zeros were written by other lanes than those that read and overwrite them.
    tl.debug_barrier()
    if total == 0:
        field = tl.arange(0, 16)
        here = (field == 0) | ((field == 9) & (paired > 0))
        tl.store(out + field, tl.where(here, 1, 0), mask=here)
        tl.store(out + 4 + field, rows + field * 0, mask=here)
    else:
        _split(
            query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, cores,
            policy, 8 + wide, rows, kind, family, block_shift, per_block, span, reach, ratio_shift,
            cap, LANES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["capacity"])
def _table_kernel(query_start_loc, seq_lens, out, plans, scratch, capacity, LANES: tl.constexpr):
    program = tl.program_id(0)
    source = tl.load(plans + program * 16 + 13)
    # A copy is planned again from its source's inputs: programs cannot wait for each other.
    row = plans + tl.where(source >= 0, source, program) * 16
    _plan(
        query_start_loc, seq_lens, out, scratch, capacity, program,
        tl.load(row), tl.load(row + 1), tl.load(plans + program * 16 + 2), tl.load(row + 3),
        tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7), tl.load(row + 8),
        tl.load(row + 9), tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), LANES,
    )  # fmt: skip


@triton.jit(do_not_specialize=[
    "program", "capacity", "starts_at", "lens_at", "out_at", "rows", "kind", "heads", "family",
    "num_cores", "window_left", "window_right", "ratio", "topk", "policy",
])  # fmt: skip
def _row_kernel(
    query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at, out_at, rows,
    kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    LANES: tl.constexpr,
):  # fmt: skip
    _plan(
        query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at, out_at,
        rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy, LANES,
    )  # fmt: skip


def sas_plan(query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor) -> None:
    """Launch the planner; same contract as the reference.

    A table on the device of ``out`` takes one launch and at most ``MAX_ROWS`` requests a plan. A
    table on the host is checked, and takes a launch a plan with the numbers as arguments.
    """
    on_device = plans.device == out.device
    capacity = min(seq_lens.numel(), MAX_ROWS)
    table = [] if on_device else plans.tolist()
    if not on_device:
        check_plans(table, query_start_loc, seq_lens, out)
        capacity = max((row[3] for row in table), default=0)
    # A graph that captures the launch keeps this in its pool.
    size = len(plans) * ARRAYS * (capacity + 1)
    scratch = torch.empty(size, dtype=torch.int64, device=out.device)
    if on_device:
        _table_kernel[(len(plans),)](
            query_start_loc, seq_lens, out, plans, scratch, capacity, LANES=LANES, num_warps=WARPS
        )
    for index, row in enumerate(table):
        source = table[row[13]] if row[13] >= 0 else row
        _row_kernel[(1,)](
            query_start_loc, seq_lens, out, scratch, capacity, index, *source[:2], row[2],
            *source[3:13], LANES=LANES, num_warps=WARPS,
        )  # fmt: skip
