"""Whether what a layout names lies inside its storage."""

from collections.abc import Sequence
from itertools import count

from torch import Tensor

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels.eager import is_watched
from dsacp.kernels.fields import DRAFT_FIELDS, START_FIELDS, field_length

Counts = Sequence[int]


def check_fields(
    arena: Tensor,
    layout: Tensor,
    first_step: int,
    row_counts: Counts,
    padded_tokens: Counts,
    start_counts: Counts | None = None,
) -> None:
    """Check the fields of steps from ``first_step`` on, exactly where ``layout`` lies on the host.

    A layout on a device is not read: that would wait for the device. Under capture none is: the
    eager run before it has checked, and watchers of host syncs object to every read. There no
    field may be larger than the whole storage, which shapes alone tell.

    ``start_counts`` are the rows through which starts are written, the row counts by default.

    Raises:
        CapacityError: a field ends past ``arena``.
    """
    starts = row_counts if start_counts is None else start_counts
    sizes = [
        [
            field_length(field, last if field in START_FIELDS else rows, tokens)
            for field in DRAFT_FIELDS
        ]
        for rows, tokens, last in zip(row_counts, padded_tokens, starts, strict=True)
    ]
    _check("layout", arena, layout, first_step, sizes)


def check_rope_rows(
    rope_bank: Tensor,
    rope_layout: Tensor,
    first_step: int,
    padded_tokens: Counts,
    widths: Counts,
) -> None:
    """Check the RoPE rows, of each table's own width, as ``check_fields`` checks fields.

    Raises:
        LayoutError: there is not one width >= 1 a table.
        CapacityError: rows end past ``rope_bank``.
    """
    if len(widths) != rope_layout.shape[0] or min(widths, default=1) < 1:
        raise LayoutError(
            f"expected a RoPE width >= 1 for each of {rope_layout.shape[0]} tables, found "
            f"{list(widths)}: pass every configuration's rotary dimension"
        )
    for table, width in enumerate(widths):
        sizes = [[tokens * width] * 2 for tokens in padded_tokens]
        _check("rope_layout", rope_bank, rope_layout[table : table + 1], first_step, sizes)


def _is_readable(layout: Tensor) -> bool:
    return layout.device.type == "cpu" and not is_watched()


def _check(
    name: str, storage: Tensor, layout: Tensor, first_step: int, sizes: list[list[int]]
) -> None:
    if not _is_readable(layout):
        _check_largest(name, storage, layout, sizes)
        return
    for steps in layout.tolist():
        for step, offsets, counts in zip(
            count(first_step), steps[first_step:], sizes, strict=False
        ):
            for field, (begin, size) in enumerate(zip(offsets, counts, strict=True)):
                if begin >= 0 and begin + size > storage.numel():
                    raise CapacityError(
                        f"expected every field of {name} to end inside its storage of "
                        f"{storage.numel()} words, found words [{begin}, {begin + size}) of field "
                        f"{field} in step {step}: build the bank for this many rows and tokens"
                    )


def _check_largest(name: str, storage: Tensor, layout: Tensor, sizes: list[list[int]]) -> None:
    largest = max(map(max, sizes), default=0)
    if layout.numel() and largest > storage.numel():
        raise CapacityError(
            f"expected fields of {name} inside their storage of {storage.numel()} words, found one "
            f"of {largest} words: build the bank for this many rows and tokens"
        )
