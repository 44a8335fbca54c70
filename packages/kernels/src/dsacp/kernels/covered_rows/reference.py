"""Which query rows a work plan covers, in torch: the consumer's decoding rule (upstream U8)."""

import torch
from torch import Tensor

END_FIELDS = slice(4, 7)


def token_owner(query_start_loc: Tensor, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (request, index inside the request, owned) of flat tokens ``0..num_tokens-1``."""
    token = torch.arange(num_tokens, device=query_start_loc.device, dtype=torch.int64)
    starts = query_start_loc.to(torch.int64)
    request = torch.searchsorted(starts[1:].contiguous(), token, right=True)
    owned = request < starts.numel() - 1
    request = torch.where(owned, request, 0)
    return request, token - starts[request], owned & (token >= starts[0])


def plan_mask(
    words: Tensor,
    request: Tensor,
    row: Tensor,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
) -> Tensor:
    """Return bool [T]: row ``row`` of ``request`` lies in the range of an enabled core."""
    records = words[: record_size * num_records].view(num_records, record_size).to(torch.int64)
    enabled = records[:, 0] == 1
    first, first_row = records[:, 1], records[:, 2]
    if not reads_core0_start:
        first, first_row = first.clone(), first_row.clone()
        first[0] = 0
        first_row[0] = 0
    last, stop_row, stop_s2 = records[:, END_FIELDS].unbind(1)
    if reads_core0_start:
        takes_last = stop_row != 0
    else:
        start_s2 = torch.where(
            torch.arange(num_records, device=words.device) == 0, 0, records[:, 3]
        )
        moved = (first_row != stop_row) | (start_s2 != stop_s2)
        takes_last = torch.where(first == last, moved, (stop_row != 0) | (stop_s2 != 0))
    b, r = request[:, None], row[:, None]
    inside = (b > first) | ((b == first) & (r >= first_row))
    before = (b < last) | ((b == last) & takes_last & ((r < stop_row) | (stop_row == 0)))
    hit = enabled & inside & before
    if paired:
        # The cores of a pair own 64 heads each: a row is whole only when both halves cover it.
        return hit[:, 0::2].any(1) & hit[:, 1::2].any(1)
    return hit.any(1)


def covered_rows(
    words: Tensor,
    query_start_loc: Tensor,
    out: Tensor,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
    tokens_per_row: int,
) -> None:
    """Write the mask of every token of ``out``; see the package function."""
    request, index, owned = token_owner(query_start_loc, out.numel())
    row = index // tokens_per_row
    mask = plan_mask(words, request, row, record_size, num_records, paired, reads_core0_start)
    out.copy_(mask & owned)
