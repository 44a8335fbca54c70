"""Rank-local query starts and lengths in torch: the oracle of the Triton kernel."""

import torch
from torch import Tensor


def local_metadata(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out_query_start_loc: Tensor,
    out_seq_lens: Tensor,
    out_start_pos: Tensor,
    shard_start: int,
    shard_end: int,
    causal: bool,
) -> None:
    """Write the metadata of tokens ``[shard_start, shard_end)``; see the package function."""
    starts, ends = query_start_loc[:-1], query_start_loc[1:]
    local_ends = ends.clamp(shard_start, shard_end)
    # The sum of clamped lengths telescopes, so a row needs no scan over the rows before it.
    torch.sub(query_start_loc.clamp(shard_start, shard_end), shard_start, out=out_query_start_loc)
    owned = local_ends > starts.clamp(shard_start, shard_end)
    length = (seq_lens - (ends - local_ends)).clamp(min=0) if causal else seq_lens
    out_seq_lens.copy_(torch.where(owned & (seq_lens > 0), length, 0))
    out_start_pos.copy_((seq_lens - (ends - starts)).clamp(min=0))
