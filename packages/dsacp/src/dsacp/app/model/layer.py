"""One transformer layer over ranks: keys for all tokens, queries for the rank's own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.caches import LayerCaches
from dsacp.app.model.compressor import compress
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.indexer import select_rows
from dsacp.app.model.join import Join, join_simulated
from dsacp.app.model.ops import rms_norm, rope_rows, rotate
from dsacp.app.model.weights import LayerWeights
from dsacp.core import LayoutError
from dsacp.drafting_cache import GroupMetadata, StepMetadata
from dsacp.kernels import sparse_attention


@dataclass(frozen=True)
class RankStep:
    """What one rank brings to one layer of one step: its metadata and its caches."""

    metadata: StepMetadata
    caches: LayerCaches


@dataclass(frozen=True)
class LayerShape:
    """What a layer needs to know of its place in the model."""

    name: str
    window_group: str
    ratio: int


@dataclass(frozen=True)
class _Choice:
    """Queries, and the compressed half of the attention call."""

    queries: Tensor
    pages: Tensor | None = None
    block_table: Tensor | None = None
    indices: Tensor | None = None


def run_layer(
    config: ModelConfig,
    shape: LayerShape,
    weights: LayerWeights,
    hidden: Tensor,
    ranks: Sequence[RankStep],
    join: Join = join_simulated,
) -> Tensor:
    """Return [Tp, H] after attention and MLP; the ranks' rows are joined by an all-gather.

    Args:
        config: model sizes.
        shape: the layer's RoPE name, window group and compress ratio.
        weights: shared by the ranks.
        hidden: [Tp, H], the residual stream of all padded tokens.
        ranks: those of this process, in order.
        join: brings the rows of all ranks together.
    """
    x = rms_norm(hidden)
    keys = rms_norm(x @ weights.kv)
    outputs = [_attend(config, shape, weights, x, keys, rank) for rank in ranks]
    hidden = hidden + join(outputs)
    x = rms_norm(hidden)
    inner = torch.nn.functional.silu(x @ weights.gate) * (x @ weights.up)
    return hidden + inner @ weights.down


def _attend(
    config: ModelConfig,
    shape: LayerShape,
    weights: LayerWeights,
    x: Tensor,
    keys: Tensor,
    rank: RankStep,
) -> Tensor:
    metadata = rank.metadata
    window = metadata.groups[shape.window_group]
    if window.slot_mapping is None:
        raise LayoutError(f"expected slots in group {shape.window_group!r}, found none")
    rank.caches.window.write(
        window.slot_mapping, rotate(keys, *rope_rows(metadata.rope, shape.name))
    )
    local = x[metadata.shard.start : metadata.shard.end]
    cos, sin = rope_rows(metadata.local_rope, shape.name)
    queries = (local @ weights.query).view(-1, config.num_heads, config.head_dim)
    queries = rotate(rms_norm(queries), cos, sin)
    choice = _Choice(queries)
    if shape.ratio > 1:
        _compress(shape, weights, x, rank)
        choice = _choose(config, shape, weights, local, queries, rank)
    plan_group = metadata.groups[f"c{shape.ratio}"] if shape.ratio > 1 else window
    mixed = sparse_attention(
        choice.queries,
        rank.caches.window.pages,
        window.block_table,
        window.local_query_start_loc,
        window.local_seq_lens,
        weights.sinks,
        scale=config.scale,
        window_left=config.window - 1,
        cmp_ratio=shape.ratio,
        sas_metadata=plan_group.sas_metadata,
        num_cores=config.num_cores,
        cmp_kv=choice.pages,
        cmp_block_table=choice.block_table,
        cmp_indices=choice.indices,
    )
    return rotate(mixed, cos, sin, inverse=True).flatten(1) @ weights.output


def _compress(shape: LayerShape, weights: LayerWeights, x: Tensor, rank: RankStep) -> None:
    groups, caches = rank.metadata.groups, rank.caches
    raw = groups[f"c{shape.ratio}_state"]
    if (
        weights.compressor is not None
        and caches.state is not None
        and caches.compressed is not None
    ):
        pool = weights.compressor
        target = groups[f"c{shape.ratio}"]
        compress(pool, x @ pool.state, raw, target, caches.state, caches.compressed)
    if weights.indexer is None or caches.index_state is None or caches.index_keys is None:
        return
    pool = weights.indexer.keys
    target = groups["indexer"]
    compress(pool, x @ pool.state, raw, target, caches.index_state, caches.index_keys)


def _choose(
    config: ModelConfig,
    shape: LayerShape,
    weights: LayerWeights,
    local: Tensor,
    queries: Tensor,
    rank: RankStep,
) -> _Choice:
    group: GroupMetadata = rank.metadata.groups[f"c{shape.ratio}"]
    caches = rank.caches
    if caches.compressed is None:
        raise LayoutError(f"expected a compressed cache in layer {shape.name!r}, found none")
    if weights.indexer is None or caches.index_keys is None:
        return _Choice(queries, caches.compressed.pages, group.block_table)
    cos, sin = rope_rows(rank.metadata.local_rope, shape.name)
    chosen, covered = select_rows(
        weights.indexer,
        local,
        rank.metadata.groups["indexer"],
        caches.index_keys,
        cos,
        sin,
        topk=config.index_topk,
        ratio=shape.ratio,
        num_cores=config.num_cores,
    )
    # A device would attend to stale indices of a row that the plan left out; NaN is seen at once.
    queries = torch.where(covered.view(-1, 1, 1), queries, torch.nan)
    return _Choice(queries, caches.compressed.pages, group.block_table, chosen)
