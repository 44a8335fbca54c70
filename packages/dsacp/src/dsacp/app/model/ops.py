"""Small tensor functions that every layer shares; no host sync, shapes fixed by their inputs."""

import torch
from torch import Tensor

from dsacp.drafting_cache import GroupMetadata
from dsacp.rope_proxy import RopeRows


def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Normalise the last dim to unit root mean square, optionally scaled by ``weight``."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return normed if weight is None else normed * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last ``cos.shape[-1]`` dims of ``x`` in interleaved pairs (upstream U32).

    Args:
        x: [T, D] or [T, heads, D].
        cos: [T, rope_dim], any float type.
        sin: [T, rope_dim].
        inverse: rotate back.
    """
    rope_dim = cos.shape[-1]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    plain, pairs = x[..., :-rope_dim], x[..., -rope_dim:]
    swapped = torch.stack((-pairs[..., 1::2], pairs[..., 0::2]), -1).flatten(-2)
    turned = pairs * cos - swapped * sin if inverse else pairs * cos + swapped * sin
    return torch.cat((plain, turned), -1)


def rope_rows(rope: RopeRows, layer: str) -> tuple[Tensor, Tensor]:
    """Return the cos and sin rows of one layer's RoPE configuration."""
    return rope.cos[layer], rope.sin[layer]


def flat_slots(block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Return the cache rows of ``positions`` [T, n] of ``requests`` [T], as int64.

    Rows of padding may name anything; they stay inside the table, and their result is unused.
    """
    rows = requests.long().clamp(min=0).unsqueeze(-1)
    columns = (positions // block_size).clamp(0, block_table.shape[1] - 1)
    pages = block_table[rows, columns].long().clamp(min=0)
    return pages * block_size + positions % block_size


def local_rows(group: GroupMetadata, count: int) -> tuple[Tensor, Tensor]:
    """Return owner and absolute position of the rank's own tokens, both int64 [count].

    Tokens that no request owns get owner R-1 and position -1.
    """
    starts = group.local_query_start_loc.long()
    tokens = torch.arange(count, device=starts.device)
    owner = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
    owned = owner < group.local_seq_lens.shape[0]
    owner = owner.clamp(max=group.local_seq_lens.shape[0] - 1)
    position = group.local_seq_lens[owner] - starts[owner + 1] + tokens
    return owner, torch.where(owned, position, -1)


def fit_rows(x: Tensor, count: int) -> Tensor:
    """Return the first ``count`` rows of ``x``, zero rows added where it has fewer."""
    if x.shape[0] >= count:
        return x[:count]
    return torch.cat((x, x.new_zeros((count - x.shape[0], *x.shape[1:]))))
