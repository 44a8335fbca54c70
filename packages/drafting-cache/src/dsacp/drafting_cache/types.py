"""What goes into a build and what comes out; all frozen."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dsacp.core import LayoutError, TokenShard, check_whole
from dsacp.kernels import CompressorRows
from dsacp.rope_proxy import RopeRows
from dsacp.sas_metadata import QliSpec, SasSpec


@dataclass(frozen=True)
class GroupSpec:
    """One KV-cache group whose layers share a block table (upstream U20).

    Attributes:
        name: unique name, the key of ``StepMetadata.groups``.
        block_size: KV rows of one page; for a compressed group, compressed rows.
        sas: attention work split to plan, or None.
        qli: lightning-indexer work split to plan, or None.
        compress_ratio: raw tokens of one compressed row; 1 for plain groups. A compressed group
            has no raw slots: ``GroupMetadata.slot_mapping`` is None.
        compressor: whether the step needs the group's compressed rows (upstream U15).
    """

    name: str
    block_size: int
    sas: SasSpec | None = None
    qli: QliSpec | None = None
    compress_ratio: int = 1
    compressor: bool = False

    @property
    def has_slots(self) -> bool:
        """Whether the cache has a row for every raw token."""
        return self.compress_ratio == 1

    def __post_init__(self) -> None:
        check_whole(f"block_size of group {self.name!r}", self.block_size, 1)
        check_whole(f"compress_ratio of group {self.name!r}", self.compress_ratio, 1)
        if self.compressor and self.compress_ratio == 1:
            raise LayoutError(
                f"expected compress_ratio > 1 for the compressor of group {self.name!r}, found 1"
            )


@dataclass(frozen=True)
class DraftBatch:
    """One step's batch as the framework schedules it.

    All tensors lie on one device, the builder's or the host's. After ``bind`` with ``BoundInputs``
    a build reads those: here they are None, or the bound tensors themselves.

    Attributes:
        num_reqs: real requests; 0 on an idle data-parallel rank.
        num_tokens: real query tokens.
        query_start_loc: int32 [>= num_reqs+1], from 0 to ``num_tokens`` without falling.
        seq_lens: int32 [>= num_reqs], KV length including this step's queries; never negative.
        num_rejected: int32 [>= num_reqs] draft tokens that verification refused, or None. None in
            a step >= 1 that the host itself has advanced.
        bucket: captured size to build for (step-0 tokens), or None for the batch's own size.
        num_tokens_padded: the framework's padded tokens of the step that the batch describes, when
            it pads without a bucket; in ``layout="tokens"`` also the rows of the steps after it.
        num_reqs_padded: its padded requests, likewise, in every step. A step >= 1 has one token a
            request: there either count says both, and the two must agree.
        drafts: int32 [>= num_reqs], 0 where a request takes no part in steps >= 1, such as a chunk
            of an unfinished prompt; None where all take part. A request without query tokens
            takes none either way. Step 0 is the same for all.
    """

    num_reqs: int
    num_tokens: int
    query_start_loc: Tensor | None = None
    seq_lens: Tensor | None = None
    num_rejected: Tensor | None = None
    bucket: int | None = None
    num_tokens_padded: int | None = None
    num_reqs_padded: int | None = None
    drafts: Tensor | None = None


@dataclass(frozen=True)
class BoundInputs:
    """Host tensors with stable addresses: read in place, so that no staging launch is needed.

    ``R`` is ``DraftCapacity.max_reqs``, the rows that a step may read. It may be more than the
    framework's requests and a dummy one: later steps have requests rounded up to the ranks.

    Attributes:
        query_start_loc: int32 [>= R + 1].
        seq_lens: int32 [>= R].
        num_rejected: int32 [>= R].
        num_reqs: int32 [1], real requests, kept on the device by the host.
        drafts: int32 [>= R], see ``DraftBatch``; None where every request takes part.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    num_rejected: Tensor
    num_reqs: Tensor
    drafts: Tensor | None = None


@dataclass(frozen=True)
class GroupMetadata:
    """One group's metadata of one step; every tensor is a view of a persistent buffer.

    ``R`` is the step's ``num_reqs``, ``Tp`` the tokens padded to the tensor-parallel size.

    Attributes:
        query_start_loc: int32 [R+1], global starts.
        seq_lens: int32 [R], global lengths, 0 on padding.
        local_query_start_loc: int32 [R+1], starts inside this rank's token slice.
        local_seq_lens: int32 [R], lengths that this rank's queries see.
        start_pos: int32 [R], global position of each first query token.
        positions: int32 [Tp], 0 on padding.
        slot_mapping: int32 [Tp] flat slots, -1 on padding; None in a compressed group.
        block_table: the bound table's first R rows, read in place.
        sas_metadata: int32 [1024] or None.
        qli_metadata: int32 [1024] or None.
        compressor: compressed rows or None.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    local_query_start_loc: Tensor
    local_seq_lens: Tensor
    start_pos: Tensor
    positions: Tensor
    slot_mapping: Tensor | None
    block_table: Tensor
    sas_metadata: Tensor | None
    qli_metadata: Tensor | None
    compressor: CompressorRows | None


@dataclass(frozen=True)
class StepMetadata:
    """Everything one attention step reads.

    Attributes:
        draft_index: 0 for the first pass over the target's batch, then 1..K-1.
        num_reqs: captured request rows, padding included; no more than a bound block table has,
            so that a table of max_num_seqs rows is never copied (``padding="repeat"`` only).
        num_tokens: the step's padded tokens before rounding up to the tensor-parallel size.
        num_real_reqs: int32 [1] on the device: the real requests, which change between replays.
        shard: this rank's slice of ``num_tokens``.
        groups: metadata by group name.
        rope: RoPE rows of all padded tokens (keys are rotated on every rank).
        local_rope: the rows of this rank's queries, a view of ``rope``.
        generation: the buffers' generation; a graph of an older one must not be replayed.
    """

    draft_index: int
    num_reqs: int
    num_tokens: int
    num_real_reqs: Tensor
    shard: TokenShard
    groups: Mapping[str, GroupMetadata]
    rope: RopeRows
    local_rope: RopeRows
    generation: int
