"""Shape of the seeded DeepSeek-V4-shaped model, its KV groups and its RoPE configurations."""

from dataclasses import dataclass

from dsacp.core import LayoutError
from dsacp.drafting_cache import GroupSpec
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import QliSpec, SasSpec

WINDOW = "swa"
DRAFT = "draft"
INDEXER = "indexer"
DRAFT_LAYER = "draft.attn"
YARN_FACTOR = 4


def layer_name(index: int) -> str:
    """Return the name under which target layer ``index`` looks its RoPE rows up."""
    return f"layers.{index}.attn"


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
        max_model_len: positions that RoPE tables and block tables cover.
        num_cores: cores that attention work is split over.
        seed: seed of every weight.
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
    max_model_len: int = 1024
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
    def plain_rope(self) -> RopeConfig:
        """RoPE of window-only layers: no scaling, as vLLM has it (spec ascend 5)."""
        return RopeConfig(self.rope_dim, self.max_model_len, 10000.0)

    @property
    def compress_rope(self) -> RopeConfig:
        """RoPE of compressed layers: YaRN over a base of its own."""
        original = -(-self.max_model_len // YARN_FACTOR)
        return RopeConfig(self.rope_dim, original, 40000.0, float(YARN_FACTOR))

    def sas(self, ratio: int) -> SasSpec:
        """Return the attention work split of a layer with ``ratio``."""
        return SasSpec(
            num_heads=self.num_heads,
            num_cores=self.num_cores,
            window_left=self.window - 1,
            cmp_ratio=ratio,
            cmp_topk=self.index_topk if ratio == 4 else 0,
        )


def model_groups(config: ModelConfig) -> tuple[GroupSpec, ...]:
    """Return the target's KV groups, as one step of DeepSeek-V4 has them (spec ascend 3.1).

    Block sizes differ on purpose: a table or slot of a neighbouring group must not fit by chance.
    """
    groups = [GroupSpec(WINDOW, 16, sas=config.sas(1))]
    if 4 in config.compress_ratios:
        qli = QliSpec(num_cores=config.num_cores, cmp_ratio=4)
        groups += [
            GroupSpec("c4", 16, sas=config.sas(4), compress_ratio=4, compressor=True),
            GroupSpec(INDEXER, 8, qli=qli, compress_ratio=4, compressor=True),
            GroupSpec("c4_state", 4),
        ]
    if 128 in config.compress_ratios:
        groups += [
            GroupSpec("c128", 2, sas=config.sas(128), compress_ratio=128, compressor=True),
            GroupSpec("c128_state", 32),
        ]
    return tuple(groups)


def draft_groups(config: ModelConfig) -> tuple[GroupSpec, ...]:
    """Return the drafter's KV groups: one window-only layer."""
    return (GroupSpec(DRAFT, 8, sas=config.sas(1)),)


def target_rope(config: ModelConfig) -> RopeRegistry:
    """Register the target's layers; compressed ones also give the full table of their ratio."""
    registry = RopeRegistry()
    for index, ratio in enumerate(config.compress_ratios):
        if ratio == 1:
            registry.register(layer_name(index), config.plain_rope)
        else:
            registry.register(
                layer_name(index), config.compress_rope, groups=("default", f"c{ratio}")
            )
    return registry


def draft_rope(config: ModelConfig) -> RopeRegistry:
    """Register the drafter's layer."""
    registry = RopeRegistry()
    registry.register(DRAFT_LAYER, config.plain_rope)
    return registry
