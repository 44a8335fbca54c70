"""Clean what a larger batch left behind, in torch: the oracle of the Triton kernel."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.core import CapacityError
from dsacp.kernels.fields import DRAFT_FIELDS, START_FIELDS, TOKEN_FIELDS


def clear_tails(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    rope_dim: int,
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
    bounds = zip(rows_from, rows_to, tokens_from, tokens_to, strict=True)
    groups, configs = layout.tolist(), rope_layout.tolist()
    for index, (row, row_end, token, token_end) in enumerate(bounds, first_step):
        for group in groups:
            for field, offset in zip(DRAFT_FIELDS, group[index], strict=True):
                begin, end = (token, token_end) if field in TOKEN_FIELDS else (row, row_end)
                if offset < 0 or begin == end:
                    continue
                begin, end = offset + begin, offset + end
                if field in START_FIELDS:
                    lasts = last_local_starts if field.startswith("local") else last_starts
                    fills.append((_view(arena, begin + 1, end + 1), lasts[index - first_step]))
                else:
                    value = -1 if field == "slot_mapping" else 0
                    fills.append((_view(arena, begin, end), value))
        for config in configs:
            for value, offset in zip((1.0, 0.0), config[index], strict=True):
                begin, end = offset + token * rope_dim, offset + token_end * rope_dim
                if offset >= 0:
                    fills.append((_view(rope_bank, begin, end), value))
    for target, value in fills:
        target[:] = value


def _view(storage: Tensor, begin: int, end: int) -> Tensor:
    if end > storage.numel():
        raise CapacityError(
            f"expected a tail inside the storage of {storage.numel()} words, found words "
            f"[{begin}, {end}): clean only up to the rows that the bank was built for"
        )
    return storage[begin:end]
