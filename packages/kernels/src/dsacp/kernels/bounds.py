"""Whether what a layout names lies inside its storage."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsacp.core import CapacityError
from dsacp.kernels.fields import DRAFT_FIELDS, field_length

Counts = Sequence[int]


def check_fields(
    arena: Tensor, layout: Tensor, first_step: int, row_counts: Counts, padded_tokens: Counts
) -> None:
    """Check the fields of steps from ``first_step`` on, where ``layout`` lies on the host.

    A layout on a device is not read: that would wait for the device.

    Raises:
        CapacityError: a field ends past ``arena``.
    """
    if layout.device.type == "cpu":
        sizes = [
            [field_length(field, rows, tokens) for field in DRAFT_FIELDS]
            for rows, tokens in zip(row_counts, padded_tokens, strict=True)
        ]
        _check("layout", arena, layout, first_step, sizes)


def check_rope_rows(
    rope_bank: Tensor,
    rope_layout: Tensor,
    first_step: int,
    padded_tokens: Counts,
    widths: Counts,
) -> None:
    """Check the RoPE rows, ``widths`` of them a table, as ``check_fields`` checks fields.

    Raises:
        CapacityError: rows end past ``rope_bank``.
    """
    if rope_layout.device.type == "cpu":
        for table, width in enumerate(widths):
            sizes = [[tokens * width] * 2 for tokens in padded_tokens]
            _check("rope_layout", rope_bank, rope_layout[table : table + 1], first_step, sizes)


def _check(
    name: str, storage: Tensor, layout: Tensor, first_step: int, sizes: list[list[int]]
) -> None:
    begins = layout[:, first_step : first_step + len(sizes)].to(torch.int64)
    ends = begins + torch.tensor(sizes, dtype=torch.int64)
    wrong = ((begins >= 0) & (ends > storage.numel())).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise CapacityError(
            f"expected every field of {name} to end inside its storage of {storage.numel()} words, "
            f"found words [{int(begins[at])}, {int(ends[at])}) of field {at[2]} in step "
            f"{first_step + at[1]}: build the bank for this many rows and tokens"
        )
