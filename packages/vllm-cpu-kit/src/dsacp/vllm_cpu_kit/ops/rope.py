"""Interleaved (GPT-J) rotation of the trailing 64 channels."""

import torch
from torch import Tensor

ROPE_DIM = 64


def rotate_tail(x: Tensor, positions: Tensor, cos_sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last ``ROPE_DIM`` channels of ``x`` by each row's position.

    Args:
        x: float [T, ..., D]; the channels before the last 64 pass through.
        positions: int64 [T]; negative positions read row 0.
        cos_sin: float32 [L, 64], cosines then sines.
        inverse: rotate back.

    Returns:
        float32 tensor of ``x``'s shape.
    """
    table = cos_sin.index_select(0, positions.clamp(min=0).long()).float()
    shape = (table.shape[0],) + (1,) * (x.dim() - 2) + (ROPE_DIM // 2,)
    cos, sin = (half.reshape(shape) for half in table.chunk(2, dim=-1))
    if inverse:
        sin = -sin
    head, tail = x.float().split([x.shape[-1] - ROPE_DIM, ROPE_DIM], dim=-1)
    even, odd = tail.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return torch.cat((head, turned.flatten(-2)), dim=-1)
