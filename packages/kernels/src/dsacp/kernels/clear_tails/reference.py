"""Clean what a larger batch left behind, in torch: the oracle of the Triton kernel."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.core import CapacityError
from dsacp.kernels.fields import DRAFT_FIELDS, START_FIELDS, TOKEN_FIELDS

_FILLS = {"slot_mapping": -1.0}


def clear_tails(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    rope_widths: Sequence[int],
    first_step: int,
    rows_from: Sequence[int],
    rows_to: Sequence[int],
    tokens_from: Sequence[int],
    tokens_to: Sequence[int],
    last_starts: Sequence[int],
    last_local_starts: Sequence[int],
) -> None:
    """Write the inert value of every present field's tail; see the package function."""
    fills: list[tuple[Tensor, float]] = []
    groups, configs = layout.tolist(), rope_layout.tolist()
    for step, rows in enumerate(zip(rows_from, rows_to, strict=True)):
        tokens = tokens_from[step], tokens_to[step]
        for group in groups:
            for field, offset in zip(DRAFT_FIELDS, group[first_step + step], strict=True):
                if offset < 0:
                    continue
                begin, end = tokens if field in TOKEN_FIELDS else rows
                value = _FILLS.get(field, 0.0)
                if field in START_FIELDS:
                    begin, end = begin + 1, end + 1
                    value = (last_local_starts if field.startswith("local") else last_starts)[step]
                fills.append((_view(arena, offset + begin, offset + end), value))
        for width, config in zip(rope_widths, configs, strict=True):
            for value, offset in zip((1.0, 0.0), config[first_step + step], strict=True):
                begin, end = (offset + token * width for token in tokens)
                if offset >= 0:
                    fills.append((_view(rope_bank, begin, end), value))
    for target, value in fills:
        target.fill_(value)


def _view(storage: Tensor, begin: int, end: int) -> Tensor:
    if end > storage.numel():
        raise CapacityError(
            f"expected a tail inside the storage of {storage.numel()} words, found words "
            f"[{begin}, {end}): clean only up to the rows that the bank was built for"
        )
    return storage[begin:end]
