"""The 584-byte fp8 row of DeepSeek-V4's KV cache: 448 fp8, 64 bf16, 7 power-of-two scales.

A block holds the data of all its tokens first and their scales behind it. Writer and reader are
both ours, so the layout only has to agree with itself and with vLLM's page size.
"""

import torch
from torch import Tensor

NOPE = 448
TILE = 64
DATA_BYTES = NOPE + 2 * 64
SCALE_BYTES = 8
HEAD_DIM = 512
FP8_MAX = 448.0


def power_of_two_scale(amax: Tensor) -> Tensor:
    """Return the exponent of the smallest power of two that brings ``amax`` inside fp8's range."""
    return torch.ceil(torch.log2(amax.clamp(min=1e-8) / FP8_MAX)).clamp(-127, 127)


def quantize(x: Tensor, exponent: Tensor) -> Tensor:
    """Scale by 2^-exponent and round to fp8 e4m3."""
    return (x / torch.exp2(exponent)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def _columns(offsets: Tensor, width: int) -> Tensor:
    return offsets.unsqueeze(-1) + torch.arange(width)


def store_rows(cache: Tensor, slots: Tensor, block_size: int, rows: Tensor) -> None:
    """Quantise float rows [n, 512] into uint8 ``cache`` [blocks, bytes]; slot -1 writes nothing."""
    kept = slots >= 0
    slots, rows = slots[kept].long(), rows[kept]
    if not slots.numel():
        return
    tiles = rows[:, :NOPE].unflatten(-1, (-1, TILE))
    exponent = power_of_two_scale(tiles.abs().amax(-1))
    packed = quantize(tiles, exponent.unsqueeze(-1)).view(torch.uint8).flatten(1)
    rope = rows[:, NOPE:].to(torch.bfloat16).contiguous().view(torch.uint8)
    block, row = (slots // block_size).unsqueeze(-1), slots % block_size
    cache[block, _columns(row * DATA_BYTES, DATA_BYTES)] = torch.cat((packed, rope), dim=1)
    scale_at = block_size * DATA_BYTES + row * SCALE_BYTES
    cache[block, _columns(scale_at, NOPE // TILE)] = (exponent + 127).to(torch.uint8)


def load_rows(cache: Tensor, slots: Tensor, block_size: int) -> Tensor:
    """Read float32 rows [..., 512] of non-negative ``slots`` [...]."""
    flat = slots.reshape(-1).long()
    block, row = (flat // block_size).unsqueeze(-1), flat % block_size
    data = cache[block, _columns(row * DATA_BYTES, DATA_BYTES)]
    scale_at = block_size * DATA_BYTES + row * SCALE_BYTES
    exponent = cache[block, _columns(scale_at, NOPE // TILE)].float() - 127
    nope = data[:, :NOPE].contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (-1, TILE))
    nope = (nope * torch.exp2(exponent).unsqueeze(-1)).flatten(1)
    rope = data[:, NOPE:].contiguous().view(torch.bfloat16).float()
    return torch.cat((nope, rope), dim=1).view(*slots.shape, HEAD_DIM)
