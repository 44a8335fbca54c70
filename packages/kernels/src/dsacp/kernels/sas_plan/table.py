"""The ``plans`` table: one row of sixteen integers a plan."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels.sas_plan.costs import PlanSpec

PLAN_COLUMNS = 16
PLAN_WORDS = 1024
MAX_ROWS = 16384
"""Requests of one plan that a device plans."""
MAX_CORES = 36
"""Core records that the 1024 words are read for."""
RATIOS = tuple(1 << power for power in range(8))
"""Raw tokens a compressed key: the device divides by shifts."""


def plan_table(rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> Tensor:
    """Return int32 [P, 16] of plan rows, as ``SasSpec.plan_row`` and ``QliSpec.plan_row`` give.

    Raises:
        LayoutError: there is no row, or one has another length than 16.
    """
    for index, row in enumerate(rows):
        if len(row) != PLAN_COLUMNS:
            raise LayoutError(
                f"expected {PLAN_COLUMNS} columns in plan {index}, found {len(row)}: build rows "
                "with SasSpec.plan_row or QliSpec.plan_row"
            )
    if not rows:
        raise LayoutError("expected at least one plan row, found none: skip the launch instead")
    return torch.tensor(rows, dtype=torch.int32, device=device)


def check_plans(
    table: Sequence[Sequence[int]], query_start_loc: Tensor, seq_lens: Tensor, out: Tensor
) -> None:
    """Raise ``LayoutError`` unless every plan stays in the tensors and is one that devices make."""
    for index in range(len(table)):
        _check_plan(index, table, query_start_loc, seq_lens, out)


def _check_plan(
    index: int,
    table: Sequence[Sequence[int]],
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out: Tensor,
) -> None:
    row = table[index]
    starts_at, lens_at, out_at, rows = row[:4]
    for name, tensor, start, size in (
        ("query_start_loc", query_start_loc, starts_at, rows + 1),
        ("seq_lens", seq_lens, lens_at, rows),
        ("out", out, out_at, PLAN_WORDS),
    ):
        if start < 0 or size < 0 or start + size > tensor.numel():
            raise LayoutError(
                f"plan {index} needs words {start}..{start + size} of {name}, which holds "
                f"{tensor.numel()}: fix the offsets or the row count of the plan"
            )
    source = row[13]
    fault = _fault(PlanSpec(*row[4:13])) if source < 0 else None
    if fault is not None:
        raise LayoutError(
            f"plan {index} has {fault}, which no device plans: build rows with SasSpec.plan_row or "
            "QliSpec.plan_row"
        )
    if source >= 0 and (source >= index or table[source][13] >= 0):
        raise LayoutError(
            f"plan {index} copies plan {source}, which is not an earlier plan of its own: name the "
            "first plan of equal inputs"
        )


@lru_cache(maxsize=256)
def _fault(spec: PlanSpec) -> str | None:
    """Name the value of a specification that host and device would plan differently."""
    fits = {
        "kind": spec.kind in {0, 1},
        "num_heads": spec.num_heads >= 1,
        "family": spec.family in {0, 1},
        "num_cores": 1 <= spec.num_cores <= MAX_CORES and not (spec.paired and spec.num_cores % 2),
        "window_left": spec.window_left >= 0,
        "window_right": spec.window_right >= 0,
        "cmp_ratio": spec.cmp_ratio in RATIOS,
        "cmp_topk": spec.cmp_topk >= 0,
        "policy": spec.policy in {0, 1},
    }
    return next((f"{name} {getattr(spec, name)}" for name, fit in fits.items() if not fit), None)


def check_rows(table: Sequence[Sequence[int]]) -> None:
    """Raise ``CapacityError`` for a plan of more requests than a device plans."""
    for index, row in enumerate(table):
        if row[3] > MAX_ROWS:
            raise CapacityError(
                f"plan {index} has {row[3]} requests, a device plans {MAX_ROWS}: split the batch, "
                "or use impl='reference'"
            )
