"""Paged caches of one rank: KV rows, compressed rows, and compressor states."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.config import ModelConfig
from dsacp.app.model.groups import DRAFT_GROUP, draft_groups, target_groups


@dataclass(frozen=True)
class PagedCache:
    """Pages of ``block_size`` rows, and one scratch row behind them for slot -1.

    Attributes:
        storage: [blocks * block_size + 1, width].
        block_size: rows of a page.
    """

    storage: Tensor
    block_size: int

    @classmethod
    def allocate(
        cls, blocks: int, block_size: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> "PagedCache":
        """Allocate pages of NaN, so that a read of a row never written shows in the output."""
        rows = torch.full((blocks * block_size + 1, width), torch.nan, dtype=dtype, device=device)
        return cls(rows, block_size)

    @property
    def pages(self) -> Tensor:
        """The pages as [blocks, block_size, 1, width]."""
        return self.storage[:-1].view(-1, self.block_size, 1, self.storage.shape[1])

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Store ``rows`` [T, width] at flat ``slots`` [T]; slot -1 goes to the scratch row."""
        scratch = self.storage.shape[0] - 1
        self.storage.index_copy_(0, torch.where(slots < 0, scratch, slots).long(), rows)


@dataclass(frozen=True)
class LayerCaches:
    """Caches of one attention layer; None where its ratio has no such cache.

    Attributes:
        window: uncompressed rows.
        compressed: compressed rows.
        state: raw values and pooling scores that await compression.
        index_keys: the indexer's compressed keys.
        index_state: what ``state`` is to ``compressed``, for the indexer.
    """

    window: PagedCache
    compressed: PagedCache | None = None
    state: PagedCache | None = None
    index_keys: PagedCache | None = None
    index_state: PagedCache | None = None


def target_caches(
    config: ModelConfig, num_blocks: Mapping[str, int], dtype: torch.dtype, device: torch.device
) -> tuple[LayerCaches, ...]:
    """Allocate one rank's caches of every target layer; ``num_blocks`` by group name."""
    sizes = {group.name: group.block_size for group in target_groups(config.attention)}

    def cache(group: str, width: int) -> PagedCache:
        return PagedCache.allocate(num_blocks[group], sizes[group], width, dtype, device)

    layers = []
    for ratio in config.compress_ratios:
        window = cache("swa", config.head_dim)
        if ratio == 1:
            layers.append(LayerCaches(window))
            continue
        compressed = cache(f"c{ratio}", config.head_dim)
        state = cache(f"c{ratio}_state", 2 * config.head_dim)
        if ratio != 4:
            layers.append(LayerCaches(window, compressed, state))
            continue
        keys = cache("indexer", config.index_dim)
        key_state = cache(f"c{ratio}_state", 2 * config.index_dim)
        layers.append(LayerCaches(window, compressed, state, keys, key_state))
    return tuple(layers)


def draft_caches(
    config: ModelConfig, num_blocks: Mapping[str, int], dtype: torch.dtype, device: torch.device
) -> LayerCaches:
    """Allocate one rank's caches of the drafter."""
    (group,) = draft_groups(config.attention)
    blocks = num_blocks[DRAFT_GROUP]
    return LayerCaches(
        PagedCache.allocate(blocks, group.block_size, config.head_dim, dtype, device)
    )
