"""Sizes of the seeded DeepSeek-V4-shaped model."""

import math
from dataclasses import dataclass

from dsacp.app.model.groups import AttentionShape
from dsacp.core import LayoutError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the target and of its one-layer MTP drafter.

    Attributes:
        vocab_size: token ids.
        hidden_size: width of the residual stream.
        compress_ratios: one entry a target layer, of 1, 4 or 128.
        num_heads: query heads, all of them on every rank.
        head_dim: width of a query head and of a cached row.
        rope_dim: last dims of a head that are rotated, in interleaved pairs.
        window: positions that a query sees uncompressed, itself included.
        index_topk: compressed rows that a ratio-4 layer attends to.
        index_heads: heads of the indexer.
        index_dim: width of the indexer's keys.
        mlp_size: inner width of the dense MLP.
        block_size: rows of window and compressed pages.
        num_cores: cores that attention work is split over.
        seed: seed of every weight.

    Raises:
        LayoutError: a ratio is unknown, or ``rope_dim`` does not fit.
    """

    vocab_size: int = 512
    hidden_size: int = 64
    compress_ratios: tuple[int, ...] = (1, 4, 128, 4)
    num_heads: int = 4
    head_dim: int = 32
    rope_dim: int = 16
    window: int = 32
    index_topk: int = 8
    index_heads: int = 4
    index_dim: int = 32
    mlp_size: int = 96
    block_size: int = 8
    num_cores: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.compress_ratios) - {1, 4, 128})
        if unknown or not self.compress_ratios:
            raise LayoutError(
                f"expected compress ratios of 1, 4 or 128, found {self.compress_ratios}"
            )
        if self.rope_dim % 2 or self.rope_dim > min(self.head_dim, self.index_dim):
            raise LayoutError(
                f"expected an even rope_dim of at most {min(self.head_dim, self.index_dim)}, "
                f"found {self.rope_dim}"
            )

    @property
    def scale(self) -> float:
        """Factor of attention logits; twice the usual, so that single keys decide a token."""
        return 2.0 / math.sqrt(self.head_dim)

    @property
    def attention(self) -> AttentionShape:
        """What KV groups, work splits and RoPE are derived from."""
        return AttentionShape(
            num_heads=self.num_heads,
            window=self.window,
            index_topk=self.index_topk,
            rotary_dim=self.rope_dim,
            compress_rope_theta=40000.0,
            block_size=self.block_size,
            c4_state_rows=4,
            c128_state_rows=16,
            num_cores=self.num_cores,
        )


def group_of(ratio: int) -> str:
    """Return the KV group whose work split and pages a layer of ``ratio`` uses."""
    return "swa" if ratio == 1 else f"c{ratio}"


def rope_layer(ratio: int) -> str:
    """Return the name under which ``groups.target_rope`` registers layers of ``ratio``."""
    return f"target.{group_of(ratio)}.attn"
