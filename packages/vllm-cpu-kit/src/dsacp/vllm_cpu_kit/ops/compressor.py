"""KV compression: keep partial states, pool a closed group, normalise, rotate, quantise, store."""

import torch
from torch import Tensor

from dsacp.vllm_cpu_kit.ops.packed_cache import power_of_two_scale, quantize, store_rows
from dsacp.vllm_cpu_kit.ops.rope import rotate_tail

_INDEX_DIM = 128


def save_partial_states_cpu(
    kv: Tensor, score: Tensor, ape: Tensor, positions: Tensor, state: Tensor, slots: Tensor
) -> None:
    """Write [value | score + position bias] of each token into the state cache [blocks, bs, 2w]."""
    count = slots.shape[0]
    kept = slots >= 0
    where = slots[kept].long()
    bias = ape[positions[:count][kept] % ape.shape[0]]
    row = torch.cat((kv[:count][kept], score[:count][kept] + bias), dim=-1)
    state[where // state.shape[1], where % state.shape[1]] = row.to(state.dtype)


def _pool(state: Tensor, slots: Tensor, head_dim: int) -> Tensor:
    """Softmax-pool the states of each closed group; ``slots`` [n, window], -1 for none."""
    safe = slots.clamp(min=0)
    value, score = state[safe // state.shape[1], safe % state.shape[1]].float().chunk(2, dim=-1)
    if value.shape[-1] == 2 * head_dim:
        # overlapping groups: the older half of the window reads the first channels
        older = slots.shape[1] // 2
        value, score = (
            torch.cat((x[:, :older, :head_dim], x[:, older:, head_dim:]), dim=1)
            for x in (value, score)
        )
    gone = (slots < 0).unsqueeze(-1)
    weights = torch.softmax(score.masked_fill(gone, float("-inf")), dim=1)
    return (value.masked_fill(gone, 0.0) * weights).sum(1)


def _compress(
    state: Tensor,
    gather: Tensor,
    positions: Tensor,
    slots: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    ratio: int,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    count = min(gather.shape[0], slots.shape[0])
    kept = slots[:count] >= 0
    if not bool(kept.any()):
        return slots.new_empty(0), weight.new_empty(0, head_dim)
    x = _pool(state, gather[:count][kept].long(), head_dim)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    first = positions[:count][kept] // ratio * ratio
    return slots[:count][kept].long(), rotate_tail(x, first, cos_sin)


def compress_norm_rope_store_cpu(
    state: Tensor,
    gather: Tensor,
    positions: Tensor,
    slots: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    cache: Tensor,
    block_size: int,
    ratio: int,
) -> None:
    """Compress into the main cache; a token whose slot is -1 closes no group."""
    where, rows = _compress(
        state, gather, positions, slots, weight, eps, cos_sin, ratio, weight.shape[-1]
    )
    store_rows(cache, where, block_size, rows)


def compress_norm_rope_store_indexer_cpu(
    state: Tensor,
    gather: Tensor,
    positions: Tensor,
    slots: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    cache: Tensor,
    block_size: int,
    ratio: int,
) -> None:
    """Compress into the indexer's cache: 128 fp8 a token, then one float32 scale a token."""
    where, rows = _compress(
        state, gather, positions, slots, weight, eps, cos_sin, ratio, _INDEX_DIM
    )
    if not where.numel():
        return
    exponent = power_of_two_scale(rows.abs().amax(-1))
    packed = quantize(rows, exponent.unsqueeze(-1)).view(torch.uint8)
    scale = torch.exp2(exponent).float().unsqueeze(-1).contiguous().view(torch.uint8)
    block, row = (where // block_size).unsqueeze(-1), where % block_size
    cache[block, (row * _INDEX_DIM).unsqueeze(-1) + torch.arange(_INDEX_DIM)] = packed
    scale_at = block_size * _INDEX_DIM + row * 4
    cache[block, scale_at.unsqueeze(-1) + torch.arange(4)] = scale


def fused_indexer_q_rope_quant_cpu(
    positions: Tensor,
    q: Tensor,
    cos_sin: Tensor,
    q_fp8: Tensor,
    weights: Tensor,
    softmax_scale: float,
    head_scale: float,
    weights_out: Tensor,
) -> None:
    """Rotate and quantise indexer queries [T, H, 128]; fold their scale into the head weights."""
    x = rotate_tail(q, positions, cos_sin)
    exponent = power_of_two_scale(x.abs().amax(-1))
    q_fp8.copy_(quantize(x, exponent.unsqueeze(-1)).to(q_fp8.dtype))
    weights_out.copy_(weights * torch.exp2(exponent) * softmax_scale * head_scale)
