"""The ``plans`` table: one row of sixteen integers a plan."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.core import LayoutError

PLAN_COLUMNS = 16
PLAN_WORDS = 1024
MAX_ROWS = 16384
"""Requests of one plan that a table on a device can have."""


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
    """Raise ``LayoutError`` unless every plan stays inside the tensors and copies a real plan."""
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
    if source >= 0 and (source >= index or table[source][13] >= 0):
        raise LayoutError(
            f"plan {index} copies plan {source}, which is not an earlier plan of its own: name the "
            "first plan of equal inputs"
        )
