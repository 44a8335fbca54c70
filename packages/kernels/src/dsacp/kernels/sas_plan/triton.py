"""Triton planner: one program a plan, one scan over its requests, two searches a core."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.sas_plan.table import MAX_ROWS, check_plans
from dsacp.kernels.sas_plan.triton_costs import until
from dsacp.kernels.sas_plan.triton_scan import scan_requests
from dsacp.kernels.sas_plan.triton_search import (
    count_requests,
    count_rows,
    lanes_fit,
    lanes_walk,
)

LANES = 128
"""Requests scanned at once, and bounds probed at once."""
SEARCH_LANES = 32
"""Rows or requests probed at once for one cursor: one warp, so that it needs no barrier."""
WARPS = 4
ARRAYS = 5
"""Arrays of the scratch, see ``scan_requests``."""
ROOM = 1024
"""Rows that a balanced plan walks one by one; beyond, or past eight a request, it searches."""


@triton.jit
def _least_bound(
    total, peak, cores, query_start_loc, seq_lens, scratch, stride, rows, longest, flat, room, kind,
    family, block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
):  # fmt: skip
    """Smallest cost of a core under which the cores hold the batch; lanes probe candidates."""
    share = (total + (cores - 1)) // cores
    # Costs are even, but for the indexer's on A2: then so are bounds worth a try.
    unit = 2 - ((kind == 1) & (family == 0)).to(tl.int32)
    low = tl.maximum(peak, (share + (unit - 1)) // unit * unit)
    # Filled under this bound, every core but the last holds its share or more.
    high = tl.maximum(low, (share + peak - 1) // unit * unit)
    bits = 0
    for power in tl.static_range(0, 15):
        bits += (rows >= (1 << power)).to(tl.int32)
    lane = tl.arange(0, LANES).to(total.dtype)
    while low < high:
        step = ((high - low) // unit + LANES) // LANES * unit
        bound = tl.minimum(low + lane * step + (step - unit), high)
        if flat <= room:
            fits = lanes_walk(bound, cores, scratch + 5 * stride, flat)
        else:
            fits = lanes_fit(
                bound, total, cores, query_start_loc, seq_lens, scratch, stride, rows, bits,
                longest, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
            )  # fmt: skip
        low = low + tl.sum(tl.where(fits, 0, 1), 0) * step
        high = tl.minimum(high, low + step - unit)
    return high


@triton.jit
def _split(
    query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat, room,
    cores, policy, record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    """Write the records of all cores; costs have the type of ``total``."""
    bound = peak
    if policy == 1:
        bound = _least_bound(
            total, peak, cores, query_start_loc, seq_lens, scratch, stride, rows, longest, flat,
            room, kind, family, block_shift, per_block, span, reach, ratio_shift, cap, LANES,
        )  # fmt: skip
    marks = scratch + tl.where(policy == 1, 1, stride)
    field = tl.arange(0, 8)
    core = 0
    request = 0
    row = 0
    used = total * 0
    counted = tl.full([], 0, tl.int64)
    most = tl.full([], 0, tl.int64)
    while (core < cores) & (used < total):
        share = tl.where(policy == 1, 0, (total - used) // (cores - core))
        limit = used + tl.maximum(share, bound)
        words = tl.where(field == 0, 1, 0)
        words = tl.where(field == 1, request, words)
        words = tl.where(field == 2, row, words)
        if tl.load(marks + request).to(total.dtype) <= limit:
            row = 0
            request, used = count_requests(
                marks, scratch, request + 1, rows, limit,
                tl.load(scratch + request + 1).to(total.dtype), SEARCH_LANES,
            )  # fmt: skip
        blocks = tl.load(scratch + 3 * stride + request, mask=paired > 0, other=0)
        if (longest > 1) & (request < rows):
            begin = tl.load(query_start_loc + request)
            query_len = tl.load(query_start_loc + request + 1) - begin
            seq_len = tl.load(seq_lens + request)
            row, used = count_rows(
                row, tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1, limit, used,
                tl.load(scratch + 2 * stride + request).to(total.dtype), 1 - policy,
                query_len.to(total.dtype), seq_len.to(total.dtype), kind, family, block_shift,
                per_block, span, reach, ratio_shift, cap, SEARCH_LANES,
            )  # fmt: skip
            if paired > 0:
                _cost, blocks = until(
                    row.to(tl.int64), query_len.to(tl.int64), seq_len.to(tl.int64), kind, family,
                    block_shift, per_block, span, reach, ratio_shift, cap,
                )  # fmt: skip
                blocks += tl.load(scratch + 4 * stride + request)
        request = tl.where(used < total, request, rows)
        row = tl.where(used < total, row, 0)
        most = tl.maximum(most, blocks - counted)
        counted = blocks
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
def _split_either(
    query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat, room,
    cores, policy, record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    """Split in int32, three times as fast, unless the costs need int64."""
    top = 0x7FFFFFFF
    if total + 2 * peak < top:
        _split(
            query_start_loc, seq_lens, out, scratch, stride, paired, total.to(tl.int32),
            peak.to(tl.int32), longest, flat, room, cores, policy, record, rows, kind, family, block_shift,
            per_block, tl.minimum(span, top).to(tl.int32), reach, ratio_shift,
            tl.minimum(cap, top).to(tl.int32), LANES, SEARCH_LANES,
        )  # fmt: skip
    else:
        _split(
            query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat,
            room, cores, policy, record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift,
            cap, LANES, SEARCH_LANES,
        )  # fmt: skip


@triton.jit
def _plan(
    query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at, out_at, rows,
    kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    """Plan one row of the table."""
    query_start_loc += starts_at
    seq_lens += lens_at
    out += out_at
    rows = tl.minimum(rows, capacity)
    stride = capacity + 1
    scratch += program.to(tl.int64) * (5 * stride + room)
    wide = ((kind == 0) & (family == 1)).to(tl.int32)
    paired = wide * (heads == 128).to(tl.int32)
    cores = num_cores >> paired
    block_shift = 9 - 2 * family
    per_block = 6 * ((heads + 15) >> 4)
    reach = window_right
    span = window_left.to(tl.int64) + reach + 1
    ratio_shift = 0
    for power in tl.static_range(1, 8):
        ratio_shift += (ratio >= (1 << power)).to(tl.int32)
    cap = tl.where(topk > 0, topk.to(tl.int64) << ratio_shift, 1 << 40)
    tl.store(out + tl.arange(0, 1024), tl.zeros((1024,), tl.int32))
    total, peak, longest, flat = scan_requests(
        query_start_loc, seq_lens, scratch, stride, room, paired, policy, rows, kind, family, block_shift,
        per_block, span, reach, ratio_shift, cap, LANES,
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
        _split_either(
            query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat,
            room, cores, policy, 8 + wide, rows, kind, family, block_shift, per_block, span, reach, ratio_shift,
            cap, LANES, SEARCH_LANES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["capacity", "room"])
def _table_kernel(
    query_start_loc, seq_lens, out, plans, scratch, capacity, room, LANES: tl.constexpr,
    SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    source = tl.load(plans + program * 16 + 13)
    # A copy is planned again from its source's inputs: programs cannot wait for each other.
    row = plans + tl.where(source >= 0, source, program) * 16
    _plan(
        query_start_loc, seq_lens, out, scratch, capacity, room, program,
        tl.load(row), tl.load(row + 1), tl.load(plans + program * 16 + 2), tl.load(row + 3),
        tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7), tl.load(row + 8),
        tl.load(row + 9), tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), LANES, SEARCH_LANES,
    )  # fmt: skip


@triton.jit(do_not_specialize=[
    "program", "capacity", "room", "starts_at", "lens_at", "out_at", "rows", "kind", "heads", "family",
    "num_cores", "window_left", "window_right", "ratio", "topk", "policy",
])  # fmt: skip
def _row_kernel(
    query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at, out_at, rows,
    kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    _plan(
        query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at, out_at,
        rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy, LANES,
        SEARCH_LANES,
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
    size = len(plans) * (ARRAYS * (capacity + 1) + ROOM)
    scratch = torch.empty(size, dtype=torch.int64, device=out.device)
    if on_device:
        _table_kernel[(len(plans),)](
            query_start_loc, seq_lens, out, plans, scratch, capacity, ROOM, LANES=LANES,
            SEARCH_LANES=SEARCH_LANES, num_warps=WARPS,
        )  # fmt: skip
    for index, row in enumerate(table):
        source = table[row[13]] if row[13] >= 0 else row
        _row_kernel[(1,)](
            query_start_loc, seq_lens, out, scratch, capacity, ROOM, index, *source[:2], row[2],
            *source[3:13], LANES=LANES, SEARCH_LANES=SEARCH_LANES, num_warps=WARPS,
        )  # fmt: skip
