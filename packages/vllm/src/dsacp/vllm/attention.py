"""Token-sharded attention of the draft layers on vLLM's CPU attention class."""

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dsacp.vllm.exchange import heads_to_tokens, tokens_to_heads

SINKS = "dsacp_sinks"
SHARDED = "sharded_forwards"


def gather_sinks(layer: Any) -> None:
    """Keep all heads' sink logits on the layer; once, after its weights are loaded."""
    from vllm.distributed import get_tp_group

    own = layer.attn_sink.data[: layer.n_local_heads].contiguous()
    group = get_tp_group()
    sinks = group.all_gather(own, dim=0) if group.world_size > 1 else own
    object.__setattr__(layer, SINKS, sinks)


def sharded_attention(layer: Any, q: Tensor, output: Tensor, metadata: Any) -> None:
    """Attend with all heads over this rank's tokens, and bring every token's own heads back.

    Args:
        layer: vLLM's attention layer; its window cache already holds this step's keys.
        q: normalised and rotated queries [T, heads / tp, D] of all tokens.
        output: [T, padded heads, D], written in place; rows past the batch, which a host may have
            padded after its metadata was built, become zero.
        metadata: the step's window metadata with the rank's rows.
    """
    from vllm.distributed import get_tp_group

    shard, group = metadata.local.shard, get_tp_group().device_group
    tokens, heads = min(q.shape[0], shard.padded), layer.n_local_heads
    padded = pad(q[:tokens, :heads], (0, 0, 0, 0, 0, shard.padded - tokens))
    counts = metadata.attention
    mine = heads_to_tokens(padded, shard.tp_size, group, counts)
    out = _attend(layer, mine, metadata)
    output[:tokens, :heads] = tokens_to_heads(out, shard.tp_size, group, counts)[:tokens]
    output[tokens:] = 0


def _attend(layer: Any, q: Tensor, metadata: Any) -> Tensor:
    """Attention of [n, heads, D] queries over the slots of the rank's ``n`` rows."""
    out = torch.empty_like(q)
    cache = layer.swa_cache_layer.kv_cache
    cache = cache.view(cache.shape[0], -1)
    slots = metadata.local.indices.squeeze(1).long()
    sinks, none = getattr(layer, SINKS), slots[:, :0]
    torch.ops._C.flash_mla_with_kvcache_cpu(
        out, q, cache, slots, metadata.block_size, cache, none, 1, sinks, layer.scale
    )
    metadata.attention[SHARDED] += 1
    return out


def step_metadata(layer: Any) -> Any:
    """Window metadata of a layer in this forward pass if it holds the rank's rows, else None."""
    from vllm.forward_context import get_forward_context

    by_layer = get_forward_context().attn_metadata
    metadata = by_layer.get(layer.swa_cache_layer.prefix) if isinstance(by_layer, dict) else None
    return metadata if getattr(metadata, "local", None) is not None else None


def install_sharded_attention(attention_cls: Any, is_draft: Any) -> None:
    """Wrap a CPU attention class: metadata with local rows takes our path; idempotent."""
    if getattr(attention_cls, "_dsacp_wrapped", False):
        return
    stock_forward = attention_cls.forward_mqa
    stock_loaded = attention_cls.process_weights_after_loading

    @wraps(stock_loaded)
    def process_weights_after_loading(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_loaded(self, *args, **kwargs)
        if is_draft(self.swa_cache_layer):
            gather_sinks(self)

    @wraps(stock_forward)
    def forward_mqa(self: Any, q: Tensor, kv: Tensor, positions: Tensor, output: Tensor) -> None:
        metadata = step_metadata(self)
        if metadata is None:
            stock_forward(self, q, kv, positions, output)
        else:
            sharded_attention(self, q, output, metadata)

    attention_cls.process_weights_after_loading = process_weights_after_loading
    attention_cls.forward_mqa = forward_mqa
    attention_cls._dsacp_wrapped = True
