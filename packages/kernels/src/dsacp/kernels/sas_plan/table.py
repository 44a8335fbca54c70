"""The ``plans`` table: one row of sixteen integers a plan."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.core import LayoutError

PLAN_COLUMNS = 16
PLAN_WORDS = 1024


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
