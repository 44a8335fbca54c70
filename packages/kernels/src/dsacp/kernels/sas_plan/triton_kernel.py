"""One plan on the device: scan, ends of all cores, records."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_records import write_records
from dsacp.kernels.sas_plan.triton_scan import scan_requests
from dsacp.kernels.sas_plan.triton_split import balanced_ends, upstream_requests, upstream_rows


@triton.jit
def split_rows(
    query_start_loc, seq_lens, shift, out, scratch, stride, ends, paired, ceiling, total, peak,
    longest, cores, policy, record, rows, kind, family, block_shift, per_block, span, reach,
    ratio_shift, cap, LANES: tl.constexpr, SEARCH_LANES: tl.constexpr, MAX_CORES: tl.constexpr,
):  # fmt: skip
    """Write the records of all cores; costs have the type of ``total``."""
    step = rows * 0 + 1
    if policy == 1:
        best, count = balanced_ends(
            total, peak, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows,
            longest, kind, family, block_shift, per_block, span, reach, ratio_shift, cap, LANES,
            MAX_CORES,
        )  # fmt: skip
        step *= LANES
    else:
        best = rows * 0
        if longest > 1:
            count = upstream_rows(
                total, peak, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows,
                kind, family, block_shift, per_block, span, reach, ratio_shift, cap, SEARCH_LANES,
                MAX_CORES,
            )  # fmt: skip
        else:
            count = upstream_requests(
                total, peak, cores, ends, scratch, stride, rows, SEARCH_LANES, MAX_CORES
            )
    # Ends were written by other lanes than those that read them.
    tl.debug_barrier()
    write_records(
        out, ends + best, step, tl.maximum(count, 1), cores, record, paired, ceiling,
        query_start_loc, seq_lens, scratch, stride, rows, kind, family, block_shift, per_block,
        span, reach, ratio_shift, cap, MAX_CORES,
    )  # fmt: skip


@triton.jit
def plan_row(
    query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at, out_at, rows,
    kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    SCAN_LANES: tl.constexpr, LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
    MAX_CORES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Plan one row of the table."""
    out += out_at
    # Part of a batch would be a legal plan of another one: no row is planned instead.
    rows = tl.where(rows > capacity, 0, rows)
    # A plan of no rows looks at one word of either all the same: not at the ones behind them.
    query_start_loc += tl.where(rows > 0, starts_at, 0)
    seq_lens += tl.where(rows > 0, lens_at, 0)
    stride = capacity + 1
    scratch += program.to(tl.int64) * (10 * stride + (2 * MAX_CORES + 1) * LANES)
    ends = scratch + 10 * stride + LANES
    record = 8 + ((kind == 0) & (family == 1)).to(tl.int32)
    paired = (record - 8) * (heads == 128).to(tl.int32)
    cores = num_cores >> paired
    block_shift = 9 - 2 * family
    per_block = 6 * ((heads + 15) >> 4)
    # KV lengths end there, so a wider window sees no more, and sums stay in int32.
    reach = tl.minimum(window_right, 1 << 30)
    top = 0x7FFFFFFF
    span = tl.minimum(window_left, top - 1 - reach) + reach + 1
    ratio_shift = rows * 0
    for power in tl.static_range(1, 8):
        ratio_shift += (ratio >= (1 << power)).to(tl.int32)
    cap = tl.where((topk > 0) & (topk <= (top >> ratio_shift)), topk << ratio_shift, top)
    tl.store(out + tl.arange(0, 1024), tl.zeros((1024,), tl.int32))
    shift = rows * 0
    total = rows * 0
    peak = rows * 0
    longest = rows * 0
    bound = tl.full([], 0.0, tl.float32)
    most = tl.full([], 0.0, tl.float32)
    more = rows * 0 + 1
    while more > 0:
        total, peak, longest, bound = scan_requests(
            query_start_loc, seq_lens, shift, scratch, stride, paired, rows, kind, family,
            block_shift, per_block, span, reach, ratio_shift, cap, SCAN_LANES,
        )  # fmt: skip
        # Prefixes and zeros were written by other lanes than those that read and overwrite them.
        tl.debug_barrier()
        bound += 2.0 * peak.to(tl.float32)
        more = rows * 0
        if WIDE == 0:
            # Ranges stay legal for any lengths, so shorter ones do where sums would wrap.
            more = ((bound >= 2.0e9) & (shift < 30)).to(tl.int32)
            shift += 2 * more
            most = tl.maximum(most, tl.where(more > 0, bound, 0.0))
    ceiling = rows * 0
    if WIDE:
        if bound < 2.0e9:
            split_rows(
                query_start_loc, seq_lens, shift, out, scratch, stride, ends, paired, ceiling,
                total, peak, longest, cores, policy, record, rows, kind, family, block_shift,
                per_block, span, reach, ratio_shift, cap, LANES, SEARCH_LANES, MAX_CORES,
            )  # fmt: skip
        else:
            # Once more in int64, which takes three times as long.
            scratch64 = scratch.to(tl.pointer_type(tl.int64))
            span64 = span.to(tl.int64)
            cap64 = cap.to(tl.int64)
            total64, peak64, longest64, _bound = scan_requests(
                query_start_loc, seq_lens, shift, scratch64, stride, paired, rows, kind, family,
                block_shift, per_block, span64, reach, ratio_shift, cap64, SCAN_LANES,
            )  # fmt: skip
            tl.debug_barrier()
            split_rows(
                query_start_loc, seq_lens, shift, out, scratch64, stride, ends, paired, ceiling,
                total64, peak64, longest64, cores, policy, record, rows, kind, family, block_shift,
                per_block, span64, reach, ratio_shift, cap64, LANES, SEARCH_LANES, MAX_CORES,
            )  # fmt: skip
    else:
        ceiling = tl.minimum(most / per_block.to(tl.float32), 2.0e9).to(tl.int32)
        split_rows(
            query_start_loc, seq_lens, shift, out, scratch, stride, ends, paired, ceiling, total,
            peak, longest, cores, policy, record, rows, kind, family, block_shift, per_block, span,
            reach, ratio_shift, cap, LANES, SEARCH_LANES, MAX_CORES,
        )  # fmt: skip
