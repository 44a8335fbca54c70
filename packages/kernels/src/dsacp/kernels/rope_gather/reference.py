"""RoPE rows of tokens in torch: the oracle of the Triton kernel."""

import torch
from torch import Tensor


def rope_gather(
    positions: Tensor, cos_table: Tensor, sin_table: Tensor, out_cos: Tensor, out_sin: Tensor
) -> None:
    """Write the table rows of every position; see the package function."""
    index = positions.clamp(0, cos_table.shape[0] - 1)
    torch.index_select(cos_table, 0, index, out=out_cos)
    torch.index_select(sin_table, 0, index, out=out_sin)
