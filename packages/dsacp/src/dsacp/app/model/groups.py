"""KV groups and RoPE of DeepSeek-V4, for the target and for its MTP drafter (upstream U20)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsacp.app.scheduling import KvGroup
from dsacp.drafting_cache import GroupSpec
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import QliSpec, SasSpec

DRAFT_GROUP = "draft"
DRAFT_LAYER = "draft.attn"
YARN_FACTOR = 4


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of the attention that metadata depends on; DeepSeek-V4 with 128-token blocks.

    Attributes:
        num_heads: query heads of one rank (all of them under DSA-CP).
        window: tokens that window attention sees.
        index_topk: compressed rows that the indexer selects.
        rotary_dim: rotated dimensions.
        rope_theta: base of window-only layers.
        compress_rope_theta: base of compressed layers, which use YaRN.
        block_size: rows of window and compressed pages.
        c4_state_rows: rows of the C4 compressor's state pages.
        c128_state_rows: rows of the C128 compressor's state pages.
        num_cores: cube cores that a work split is made for.
    """

    num_heads: int = 64
    window: int = 128
    index_topk: int = 512
    rotary_dim: int = 64
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    block_size: int = 128
    c4_state_rows: int = 8
    c128_state_rows: int = 32
    num_cores: int = 24

    def plan(self, max_model_len: int) -> "GroupPlan":
        """Return groups and RoPE for a context length."""
        return GroupPlan(
            target_groups=target_groups(self),
            draft_groups=draft_groups(self),
            target_rope=target_rope(self, max_model_len),
            draft_rope=draft_rope(self, max_model_len),
        )

    def sas(self, ratio: int) -> SasSpec:
        """Return the attention whose work is split for layers of a compress ratio."""
        return SasSpec(
            num_heads=self.num_heads,
            num_cores=self.num_cores,
            window_left=self.window - 1,
            cmp_ratio=ratio,
            cmp_topk=self.index_topk if ratio == 4 else 0,
        )


@dataclass(frozen=True)
class GroupPlan:
    """KV groups and RoPE layers that builders serve.

    Attributes:
        target_groups: of the target.
        draft_groups: of the drafter.
        target_rope: of the target's layers.
        draft_rope: of the drafter's layer.
    """

    target_groups: tuple[GroupSpec, ...]
    draft_groups: tuple[GroupSpec, ...]
    target_rope: RopeRegistry
    draft_rope: RopeRegistry


def target_groups(shape: AttentionShape) -> tuple[GroupSpec, ...]:
    """Return the six groups of the target: window, C4, indexer, C128 and two compressor states."""
    size = shape.block_size
    return (
        GroupSpec("swa", size, sas=shape.sas(1)),
        GroupSpec("c4", size, sas=shape.sas(4), compress_ratio=4, compressor=True),
        GroupSpec(
            "indexer",
            size,
            qli=QliSpec(num_cores=shape.num_cores),
            compress_ratio=4,
            compressor=True,
        ),
        GroupSpec("c128", size, sas=shape.sas(128), compress_ratio=128, compressor=True),
        GroupSpec("c4_state", shape.c4_state_rows),
        GroupSpec("c128_state", shape.c128_state_rows),
    )


def draft_groups(shape: AttentionShape) -> tuple[GroupSpec, ...]:
    """Return the drafter's one group: window attention over its own KV."""
    return (GroupSpec(DRAFT_GROUP, shape.block_size, sas=shape.sas(1)),)


def kv_groups(specs: Sequence[GroupSpec], kv_tokens: int, max_num_seqs: int) -> tuple[KvGroup, ...]:
    """Return the caches of ``specs``: blocks for ``kv_tokens``, and a last part block a request."""
    groups = []
    for spec in specs:
        tokens = spec.block_size * spec.compress_ratio
        groups.append(KvGroup(spec.name, tokens, 1 + -(-kv_tokens // tokens) + max_num_seqs))
    return tuple(groups)


def target_rope(shape: AttentionShape, max_model_len: int) -> RopeRegistry:
    """Return the target's layers: plain RoPE for the window, YaRN where KV is compressed."""
    registry = RopeRegistry()
    registry.register("target.swa.attn", _plain(shape, max_model_len))
    yarn = RopeConfig(
        rotary_dim=shape.rotary_dim,
        max_position_embeddings=-(-max_model_len // YARN_FACTOR),
        base=shape.compress_rope_theta,
        scaling_factor=float(YARN_FACTOR),
    )
    registry.register("target.c4.attn", yarn, groups=("default", "c4"))
    registry.register("target.c128.attn", yarn, groups=("default", "c128"))
    return registry


def draft_rope(shape: AttentionShape, max_model_len: int) -> RopeRegistry:
    """Return the drafter's one layer, with plain RoPE."""
    registry = RopeRegistry()
    registry.register(DRAFT_LAYER, _plain(shape, max_model_len))
    return registry


def _plain(shape: AttentionShape, max_model_len: int) -> RopeConfig:
    return RopeConfig(
        rotary_dim=shape.rotary_dim,
        max_position_embeddings=max_model_len,
        base=shape.rope_theta,
    )
