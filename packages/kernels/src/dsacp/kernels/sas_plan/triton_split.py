"""Ends and records of all cores, from the prefixes of a plan."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_costs import until
from dsacp.kernels.sas_plan.triton_search import count_requests, count_rows, lanes_fit, lanes_walk


@triton.jit
def least_bound(
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
def split(
    query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat, room,
    cores, policy, record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift,
    cap, LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    """Write the records of all cores; costs have the type of ``total``."""
    bound = peak
    if policy == 1:
        bound = least_bound(
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
def split_either(
    query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat, room,
    cores, policy, record, rows, kind, family, block_shift, per_block, span, reach, ratio_shift,
    cap, LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    """Split in int32, three times as fast, unless the costs need int64."""
    top = 0x7FFFFFFF
    if total + 2 * peak < top:
        split(
            query_start_loc, seq_lens, out, scratch, stride, paired, total.to(tl.int32),
            peak.to(tl.int32), longest, flat, room, cores, policy, record, rows, kind, family,
            block_shift, per_block, tl.minimum(span, top).to(tl.int32), reach, ratio_shift,
            tl.minimum(cap, top).to(tl.int32), LANES, SEARCH_LANES,
        )  # fmt: skip
    else:
        split(
            query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat,
            room, cores, policy, record, rows, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap, LANES, SEARCH_LANES,
        )  # fmt: skip
