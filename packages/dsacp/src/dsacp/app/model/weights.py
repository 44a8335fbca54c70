"""Seeded weights: a strong token-to-token part, and a context part that often overrules it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.config import ModelConfig

CONTEXT_GAIN = 0.85
DRAFT_CONTEXT_GAIN = 1.0
DRAFT_HIDDEN_GAIN = 0.6


@dataclass(frozen=True)
class CompressorWeights:
    """Pools R raw rows into one (upstream U15).

    Attributes:
        state: [H, 2 * width], a token's value and pooling scores.
        bias: [R, width], added to the scores by place in the group.
    """

    state: Tensor
    bias: Tensor


@dataclass(frozen=True)
class IndexerWeights:
    """Chooses the compressed rows that a query attends to (upstream U14).

    Attributes:
        query: [H, index_heads * index_dim].
        head: [H, index_heads], weight of each head.
        keys: pools the keys.
    """

    query: Tensor
    head: Tensor
    keys: CompressorWeights


@dataclass(frozen=True)
class LayerWeights:
    """One attention layer and its MLP.

    Attributes:
        query: [H, heads * D].
        kv: [H, D], keys and values in one.
        output: [heads * D, H].
        sinks: float32 [heads].
        gate, up: [H, mlp].
        down: [mlp, H].
        compressor: of layers with ratio > 1.
        indexer: of layers with ratio 4.
    """

    query: Tensor
    kv: Tensor
    output: Tensor
    sinks: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    compressor: CompressorWeights | None = None
    indexer: IndexerWeights | None = None


@dataclass(frozen=True)
class ModelWeights:
    """Target and drafter.

    Attributes:
        embedding: [V, H], shared by both.
        head: [V, H]; the row of a token's successor is the token's embedding.
        layers: the target's layers.
        draft_embedding: [H, H], what the drafter takes of the next token.
        draft_hidden: [H, H], what it takes of the hidden state.
        draft_layer: its one layer.
    """

    embedding: Tensor
    head: Tensor
    layers: tuple[LayerWeights, ...]
    draft_embedding: Tensor
    draft_hidden: Tensor
    draft_layer: LayerWeights


class _Source:
    """Draws normal matrices on the CPU, so that every device gets the same weights."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(config.seed)
        self._dtype, self._device = dtype, device

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, self._dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self._generator)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return self.place(self.normal(rows, columns) * (gain * rows**-0.5))

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator)


def make_weights(
    config: ModelConfig,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> ModelWeights:
    """Draw all weights from ``config.seed``; equal on every device up to ``dtype``."""
    source = _Source(config, dtype, torch.device(device))
    width = config.hidden_size
    embedding = source.normal(config.vocab_size, width)
    head = torch.empty_like(embedding)
    # Greedy text then follows a fixed permutation until the context overrules it, which is what
    # the drafter can guess and what keeps the text from being a function of the last token.
    head[source.order(config.vocab_size)] = embedding * width**-0.5
    identity = torch.eye(width, dtype=torch.float64)
    return ModelWeights(
        embedding=source.place(embedding),
        head=source.place(head),
        layers=tuple(
            _layer(config, source, ratio, CONTEXT_GAIN) for ratio in config.compress_ratios
        ),
        draft_embedding=source.place(identity),
        draft_hidden=source.matrix(width, width, DRAFT_HIDDEN_GAIN),
        draft_layer=_layer(config, source, 1, DRAFT_CONTEXT_GAIN),
    )


def _layer(config: ModelConfig, source: _Source, ratio: int, gain: float) -> LayerWeights:
    width, inner = config.hidden_size, config.num_heads * config.head_dim
    compressor = _compressor(config, source, ratio, config.head_dim) if ratio > 1 else None
    return LayerWeights(
        query=source.matrix(width, inner),
        kv=source.matrix(width, config.head_dim),
        output=source.matrix(inner, width, gain * 2.0),
        sinks=source.normal(config.num_heads).to(source.place(torch.empty(0)).device).float(),
        gate=source.matrix(width, config.mlp_size),
        up=source.matrix(width, config.mlp_size),
        down=source.matrix(config.mlp_size, width, gain * 0.5),
        compressor=compressor,
        indexer=_indexer(config, source) if ratio == 4 else None,
    )


def _compressor(config: ModelConfig, source: _Source, ratio: int, width: int) -> CompressorWeights:
    bias = source.place(source.normal(ratio, width) * 0.5)
    return CompressorWeights(source.matrix(config.hidden_size, 2 * width), bias)


def _indexer(config: ModelConfig, source: _Source) -> IndexerWeights:
    return IndexerWeights(
        query=source.matrix(config.hidden_size, config.index_heads * config.index_dim),
        head=source.matrix(config.hidden_size, config.index_heads),
        keys=_compressor(config, source, 4, config.index_dim),
    )
