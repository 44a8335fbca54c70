"""Rows that the KV compressor writes in a step, in torch (upstream U15): the oracle."""

import torch
from torch import Tensor

from dsacp.kernels.slot_mapping.reference import INT32_MAX


def _owners(
    query_start_loc: Tensor, start_pos: Tensor, seq_lens: Tensor | None, ratio: int, num_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (request, compressed position, owned) of every output row."""
    row = torch.arange(num_rows, device=start_pos.device)
    if start_pos.numel() == 0:
        return torch.zeros_like(row), torch.zeros_like(row), torch.zeros_like(row) > 0
    length = (query_start_loc[1:] - query_start_loc[:-1]).to(torch.int64)
    start = start_pos.to(torch.int64)
    active = (start >= 0) & (length > 0)
    if seq_lens is not None:
        active = active & (seq_lens > 0)
    first = start.div(ratio, rounding_mode="floor")
    count = torch.where(active, (start + length).div(ratio, rounding_mode="floor") - first, 0)
    ends = count.cumsum(0)
    request = torch.searchsorted(ends, row, right=True)
    owned = request < ends.numel()
    request = torch.where(owned, request, 0)
    return request, first[request] + row - (ends - count)[request], owned


def compressor_rows(
    query_start_loc: Tensor,
    start_pos: Tensor,
    seq_lens: Tensor | None,
    block_table: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    out_slots: Tensor,
    out_positions: Tensor,
    out_requests: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    ratio: int,
    block_size: int,
) -> None:
    """Write every row of the outputs; see the package function."""
    num_rows = out_positions.numel()
    if num_rows == 0:
        return
    request, group, valid = _owners(query_start_loc, start_pos, seq_lens, ratio, num_rows)
    column, offset = group // block_size, group % block_size
    position = group * ratio
    valid = valid & (column < block_table.shape[1]) & (position < cos_table.shape[0])
    # without requests a table may have no row to look at
    table = block_table if block_table.shape[0] else block_table.new_full((1, 1), -1)
    page = table[request, torch.where(valid, column, 0)].to(torch.int64)
    slot = page * block_size + offset
    valid = valid & (page >= 0) & (slot <= INT32_MAX)
    if out_slots.dim() == 1:
        out_slots.copy_(torch.where(valid, slot, -1))
    else:
        out_slots[:, 0].copy_(torch.where(valid, page, -1))
        out_slots[:, 1].copy_(torch.where(valid, offset, block_size - 1))
    out_positions.copy_(torch.where(valid, position, -1))
    out_requests.copy_(torch.where(valid, request, -1))
    row = torch.where(valid, position, 0)
    out_cos.copy_(torch.where(valid[:, None], cos_table[row], 1))
    out_sin.copy_(torch.where(valid[:, None], sin_table[row], 0))
