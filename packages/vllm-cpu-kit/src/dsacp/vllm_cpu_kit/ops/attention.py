"""Query preparation, cache insert, window plus compressed attention, and the output rotation."""

import torch
from torch import Tensor

from dsacp.vllm_cpu_kit.ops.packed_cache import load_rows, store_rows
from dsacp.vllm_cpu_kit.ops.rope import rotate_tail

_TOKENS_AT_ONCE = 32


def fused_qnorm_rope_kv_insert_cpu(
    q: Tensor,
    kv: Tensor,
    positions: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    cos_sin: Tensor,
    padded_heads: int,
    eps: float,
    block_size: int,
) -> Tensor:
    """Normalise and rotate queries [T, H, 512]; rotate and store the KV rows that have a slot."""
    x = q.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    out = q.new_zeros(q.shape[0], padded_heads, q.shape[2])
    out[:, : q.shape[1]] = rotate_tail(x, positions, cos_sin).to(q.dtype)
    count = min(slot_mapping.shape[0], kv.shape[0])
    rows = rotate_tail(kv[:count], positions[:count], cos_sin)
    store_rows(cache, slot_mapping[:count], block_size, rows)
    return out


def _gather(cache: Tensor, slots: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    width = int((slots >= 0).sum(-1).max()) if slots.numel() else 0
    # valid slots come first in every row that vLLM builds, so the tail can be cut off
    slots = slots[:, : max(width, 1)] if slots.shape[1] else slots.new_full((len(slots), 1), -1)
    return load_rows(cache, slots.clamp(min=0), block_size), slots >= 0


def flash_mla_with_kvcache_cpu(
    out: Tensor,
    q: Tensor,
    window_cache: Tensor,
    window_slots: Tensor,
    window_block: int,
    other_cache: Tensor,
    other_slots: Tensor,
    other_block: int,
    sink: Tensor,
    scale: float,
) -> None:
    """Attend [T, H, 512] queries over listed cache slots, with one sink logit a head.

    Slots are int64 [T, K], -1 for none. Sums run in float64, so that a row's result depends
    neither on the batch nor on how many heads a rank holds. A row without keys becomes zero.
    """
    for first in range(0, q.shape[0], _TOKENS_AT_ONCE):
        part = slice(first, first + _TOKENS_AT_ONCE)
        keys, valid = _gather(window_cache, window_slots[part], window_block)
        if other_slots.shape[1]:
            far, far_ok = _gather(other_cache, other_slots[part], other_block)
            keys, valid = torch.cat((keys, far), 1), torch.cat((valid, far_ok), 1)
        out[part, : q.shape[1]] = _attend(q[part], keys, valid, sink, scale).to(out.dtype)


def _attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax of [T, H, D] queries over their [T, K, D] keys and a sink; float64 [T, H, D]."""
    keys = keys.double()
    scores = torch.einsum("thd,tkd->thk", q.double(), keys) * scale
    scores = scores.masked_fill(~valid.unsqueeze(1), float("-inf"))
    sinks = sink[: q.shape[1]].double().expand(len(keys), -1).unsqueeze(-1)
    weights = torch.softmax(torch.cat((scores, sinks), -1), dim=-1)[..., :-1]
    weights = torch.where(valid.any(-1)[:, None, None], weights, torch.zeros(()).double())
    return torch.einsum("thk,tkd->thd", weights, keys)


def inverse_gptj_rope_o_proj_cpu(
    o: Tensor, positions: Tensor, cos_sin: Tensor, _dim: int
) -> Tensor:
    """Undo the query's rotation on attention outputs [T, H, 512]; float32 out."""
    return rotate_tail(o, positions, cos_sin, inverse=True)
