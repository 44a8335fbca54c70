"""Ends of all cores under both policies, from the prefixes of a plan."""

import triton
import triton.language as tl

from dsacp.kernels.sas_plan.triton_search import count_rows, lanes_fit, whole_requests
from dsacp.kernels.triton_integers import divide


@triton.jit
def share_of(rest, parts):
    """``rest // parts``."""
    if rest.dtype == tl.int32:
        share = divide(rest, parts)
    else:
        share = rest // parts
    return share


@triton.jit
def upstream_requests(
    total, peak, cores, ends, scratch, stride, rows, LANES: tl.constexpr, MAX_CORES: tl.constexpr
):
    """``upstream_rows`` of requests that have one row each."""
    first = rows * 0
    core = rows * 0
    used = total * 0
    while (core < cores) & (used < total):
        limit = used + tl.maximum(share_of(total - used, cores - core), peak)
        first, request, used = whole_requests(scratch, stride, first, rows, limit, used, LANES)
        tl.store(ends + core, request)
        tl.store(ends + MAX_CORES + core, 0)
        core += 1
    return core


@triton.jit
def upstream_rows(
    total, peak, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows, kind, family,
    block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
    MAX_CORES: tl.constexpr,
):  # fmt: skip
    """Walk the cores one after the other (upstream U7); return how many have work.

    Ends (request and row) go to ``ends`` [2, MAX_CORES].
    """
    first = rows * 0
    core = rows * 0
    request = rows * 0
    row = rows * 0
    query_len = total * 0
    seq_len = total * 0
    origin = total * 0
    held = total * 0
    used = total * 0
    while (core < cores) & (used < total):
        limit = used + tl.maximum(share_of(total - used, cores - core), peak)
        # Else the rest of one long request is still too much.
        if held <= limit:
            first, after, used = whole_requests(scratch, stride, first, rows, limit, used, LANES)
            row = tl.where(after > request, 0, row)
            request = after
            if request < rows:
                begin = tl.load(query_start_loc + request)
                query_len = (tl.load(query_start_loc + request + 1) - begin).to(total.dtype)
                seq_len = (tl.load(seq_lens + request) >> shift).to(total.dtype)
                origin = tl.load(scratch + 2 * stride + request)
                held = tl.load(scratch + stride + request)
        if request < rows:
            row, used = count_rows(
                row, (tl.where(kind == 1, (query_len + 3) >> 2, query_len) - 1).to(tl.int32), limit,
                used, peak, origin, query_len, seq_len, kind, family, block_shift, per_block, span,
                reach, ratio_shift, cap, LANES,
            )  # fmt: skip
        tl.store(ends + core, request)
        tl.store(ends + MAX_CORES + core, row)
        core += 1
    return core


@triton.jit
def balanced_ends(
    total, peak, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows, longest,
    kind, family, block_shift, per_block, span, reach, ratio_shift, cap, LANES: tl.constexpr,
    MAX_CORES: tl.constexpr,
):  # fmt: skip
    """Find the least cost of a core under which the cores hold the batch; lanes try candidates.

    Returns the lane of ``ends`` [2, MAX_CORES, LANES] that has it, and the cores with work.
    """
    share = (total + (cores - 1)) // cores
    # Costs are even, but for the indexer's on A2: then so are bounds worth a try.
    unit = 2 - ((kind == 1) & (family == 0)).to(tl.int32)
    low = tl.maximum(peak, (share + (unit - 1)) // unit * unit)
    # Filled under this bound, every core but the last holds its share or more.
    high = tl.maximum(low, (share + peak - 1) // unit * unit)
    bits = rows * 0
    for power in tl.static_range(0, 15):
        bits += (rows >= (1 << power)).to(tl.int32)
    lane = tl.arange(0, LANES)
    best = rows * 0
    count = rows * 0
    more = rows * 0 + 1
    while more > 0:
        step = ((high - low) // unit + LANES) // LANES * unit
        bound = tl.minimum(low + lane.to(total.dtype) * step + (step - unit), high)
        held = lanes_fit(
            bound, total, cores, ends, query_start_loc, seq_lens, shift, scratch, stride, rows,
            bits, longest, kind, family, block_shift, per_block, span, reach, ratio_shift, cap,
            LANES, MAX_CORES,
        )  # fmt: skip
        best = tl.sum((held > cores).to(tl.int32), 0)
        count = tl.max(tl.where(lane == best, held, 0), 0)
        low = low + best * step
        high = tl.minimum(high, low + step - unit)
        more = (low < high).to(tl.int32)
    return best, count
