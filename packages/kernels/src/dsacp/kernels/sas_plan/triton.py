"""Triton planner: one program a plan, one scan over its requests, two searches a core."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.sas_plan.table import MAX_ROWS, check_plans
from dsacp.kernels.sas_plan.triton_scan import scan_requests
from dsacp.kernels.sas_plan.triton_split import split_either

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
def _plan(
    query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at, out_at,
    rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
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
        query_start_loc, seq_lens, scratch, stride, room, paired, policy, rows, kind, family,
        block_shift, per_block, span, reach, ratio_shift, cap, LANES,
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
        split_either(
            query_start_loc, seq_lens, out, scratch, stride, paired, total, peak, longest, flat,
            room, cores, policy, 8 + wide, rows, kind, family, block_shift, per_block, span, reach,
            ratio_shift, cap, LANES, SEARCH_LANES,
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
        query_start_loc, seq_lens, out, scratch, capacity, room, program, tl.load(row),
        tl.load(row + 1), tl.load(plans + program * 16 + 2), tl.load(row + 3), tl.load(row + 4),
        tl.load(row + 5), tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9),
        tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), LANES, SEARCH_LANES,
    )  # fmt: skip


@triton.jit(do_not_specialize=[
    "program", "capacity", "room", "starts_at", "lens_at", "out_at", "rows", "kind", "heads",
    "family", "num_cores", "window_left", "window_right", "ratio", "topk", "policy",
])  # fmt: skip
def _row_kernel(
    query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at, out_at,
    rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
):  # fmt: skip
    _plan(
        query_start_loc, seq_lens, out, scratch, capacity, room, program, starts_at, lens_at,
        out_at, rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk,
        policy, LANES, SEARCH_LANES,
    )  # fmt: skip


def sas_plan(query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor) -> None:
    """Launch the planner; same contract as the reference.

    A table on the device of ``out`` takes one launch and at most ``MAX_ROWS`` requests a plan. A
    table on the host is checked, and takes a launch a plan with the numbers as arguments.
    """
    if plans.device == out.device:
        capacity = min(seq_lens.numel(), MAX_ROWS)
        _table_kernel[(len(plans),)](
            query_start_loc, seq_lens, out, plans, _scratch(len(plans), capacity, out), capacity,
            ROOM, LANES=LANES, SEARCH_LANES=SEARCH_LANES, num_warps=WARPS,
        )  # fmt: skip
    else:
        launch_rows(query_start_loc, seq_lens, out, plans.tolist())


def launch_rows(
    query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, table: list[list[int]]
) -> None:
    """Launch once a plan, with the numbers of a table on the host as arguments."""
    check_plans(table, query_start_loc, seq_lens, out)
    capacity = max((row[3] for row in table), default=0)
    scratch = _scratch(len(table), capacity, out)
    for index, row in enumerate(table):
        source = table[row[13]] if row[13] >= 0 else row
        _row_kernel[(1,)](
            query_start_loc, seq_lens, out, scratch, capacity, ROOM, index, *source[:2], row[2],
            *source[3:13], LANES=LANES, SEARCH_LANES=SEARCH_LANES, num_warps=WARPS,
        )  # fmt: skip


def _scratch(plans: int, capacity: int, out: Tensor) -> Tensor:
    """Scratch of a launch; a graph that captures the launch keeps it in its pool."""
    size = plans * (ARRAYS * (capacity + 1) + ROOM)
    return torch.empty(size, dtype=torch.int64, device=out.device)
