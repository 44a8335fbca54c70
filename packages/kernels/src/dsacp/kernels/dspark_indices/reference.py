"""Slots that a DSpark block sees, in torch (upstream U36): the kernel's oracle."""

import torch
from torch import Tensor

from dsacp.kernels.covered_rows.reference import token_owner
from dsacp.kernels.slot_mapping.reference import INT32_MAX


def dspark_indices(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    out: Tensor,
    window: int,
    block_size: int,
) -> None:
    """Write every row of ``out`` [T, width]; see the package function."""
    if out.shape[0] == 0:
        return
    request, _, owned = token_owner(query_start_loc, out.shape[0])
    length = seq_lens.to(torch.int64)
    prefix = length - (query_start_loc[1:] - query_start_loc[:-1])
    start = (prefix - window).clamp(min=0)
    column = torch.arange(out.shape[1], device=out.device)
    position = start[request, None] + column
    valid = owned[:, None] & (position < length[request, None])
    block = position // block_size
    valid = valid & (block < block_table.shape[1])
    page = block_table[request[:, None], torch.where(valid, block, 0)].to(torch.int64)
    slot = page * block_size + position % block_size
    out.copy_(torch.where(valid & (page >= 0) & (slot <= INT32_MAX), slot, -1))
