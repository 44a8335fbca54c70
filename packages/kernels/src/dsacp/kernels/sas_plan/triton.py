"""Triton planner: one program a plan, one scan over its requests, two searches a core."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.kernels.programs import check_programs
from dsacp.kernels.sas_plan.table import MAX_CORES, MAX_ROWS, check_plans, check_rows
from dsacp.kernels.sas_plan.triton_kernel import plan_row

SCAN_LANES = 256
"""Requests scanned at once."""
LANES = 128
"""Bounds tried at once."""
SEARCH_LANES = 32
"""Rows or requests probed at once for one cursor: one warp, so that it needs no barrier."""
WARPS = 4
ARRAYS = 5
"""Arrays of the scratch, see ``scan_requests``.

A margin of a word a lane follows, then ends of ``CORE_SLOTS`` cores and lanes.
"""
CORE_SLOTS = triton.next_power_of_2(MAX_CORES)


POINTERS = ["query_start_loc", "seq_lens", "out", "scratch"]


@triton.jit(do_not_specialize=[*POINTERS, "plans", "capacity"])
def _table_kernel(
    query_start_loc, seq_lens, out, plans, scratch, capacity, SCAN_LANES: tl.constexpr,
    LANES: tl.constexpr, SEARCH_LANES: tl.constexpr, MAX_CORES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    source = tl.load(plans + program * 16 + 13)
    # A copy is planned again from its source's inputs: programs cannot wait for each other.
    row = plans + tl.where(source >= 0, source, program) * 16
    plan_row(
        query_start_loc, seq_lens, out, scratch, capacity, program, tl.load(row),
        tl.load(row + 1), tl.load(plans + program * 16 + 2), tl.load(row + 3), tl.load(row + 4),
        tl.load(row + 5), tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9),
        tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), SCAN_LANES,
        LANES, SEARCH_LANES, MAX_CORES, WIDE,
    )  # fmt: skip


@triton.jit(do_not_specialize=[
    *POINTERS, "program", "capacity", "starts_at", "lens_at", "out_at", "rows", "kind", "heads",
    "family", "num_cores", "window_left", "window_right", "ratio", "topk", "policy",
])  # fmt: skip
def _row_kernel(
    query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at, out_at,
    rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk, policy,
    SCAN_LANES: tl.constexpr, LANES: tl.constexpr, SEARCH_LANES: tl.constexpr,
    MAX_CORES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    plan_row(
        query_start_loc, seq_lens, out, scratch, capacity, program, starts_at, lens_at,
        out_at, rows, kind, heads, family, num_cores, window_left, window_right, ratio, topk,
        policy, SCAN_LANES, LANES, SEARCH_LANES, MAX_CORES, WIDE,
    )  # fmt: skip


def sas_plan(query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor) -> None:
    """Launch the planner; same contract as the reference.

    A table on the device of ``out`` takes one launch; a plan of more than ``MAX_ROWS`` requests, or
    than ``seq_lens`` has words, then covers nothing. A table on the host is checked, and takes a
    launch a plan with the numbers as arguments.
    """
    if plans.device == out.device:
        capacity = min(seq_lens.numel(), MAX_ROWS)
        check_programs("sas_plan", len(plans), out.device.type)
        lens, scratch = _lengths(query_start_loc, seq_lens), _scratch(len(plans), capacity, out)
        _table_kernel[(len(plans),)](
            query_start_loc, lens, out, plans, scratch, capacity, **constants(out.device.type),
            num_warps=WARPS,
        )  # fmt: skip
    else:
        launch_rows(query_start_loc, seq_lens, out, plans.tolist())


def launch_rows(
    query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, table: list[list[int]]
) -> None:
    """Launch once a plan, with the numbers of a table on the host as arguments.

    Raises:
        LayoutError: see ``check_plans``.
        CapacityError: a plan has more than ``MAX_ROWS`` requests.
    """
    check_plans(table, query_start_loc, seq_lens, out)
    check_rows(table)
    capacity = max((row[3] for row in table), default=0)
    scratch = _scratch(len(table), capacity, out)
    lens = _lengths(query_start_loc, seq_lens)
    for index, row in enumerate(table):
        source = table[row[13]] if row[13] >= 0 else row
        _row_kernel[(1,)](
            query_start_loc, lens, out, scratch, capacity, index, *source[:2], row[2],
            *source[3:13], **constants(out.device.type), num_warps=WARPS,
        )  # fmt: skip


def constants(device_type: str) -> dict[str, Any]:
    """Return the compile-time constants of both kernels.

    On an NPU there is no int64 path (``WIDE``): the open Ascend compiler does not finish it. Where
    costs may add up to 2e9 the plan there is made for lengths divided by a power of two: its ranges
    are legal, but not upstream's.
    """
    return {
        "SCAN_LANES": SCAN_LANES,
        "LANES": LANES,
        "SEARCH_LANES": SEARCH_LANES,
        "MAX_CORES": CORE_SLOTS,
        "WIDE": device_type != "npu",
    }


def _lengths(query_start_loc: Tensor, seq_lens: Tensor) -> Tensor:
    """Return lengths with a word at least: Ascend loads masked ones too."""
    return seq_lens if seq_lens.numel() else query_start_loc


def _scratch(plans: int, capacity: int, out: Tensor) -> Tensor:
    """Scratch of a launch; a graph that captures the launch keeps it in its pool."""
    size = plans * (2 * ARRAYS * (capacity + 1) + (2 * CORE_SLOTS + 1) * LANES)
    return torch.empty(size, dtype=torch.int32, device=out.device)
