"""Frozen metadata as views of the persistent buffers; a bucket is a prefix."""

from collections.abc import Mapping

from torch import Tensor

from dsacp.core import TokenShard
from dsacp.drafting_cache.buffers import COMPRESSOR_ROPE, COMPRESSOR_WORDS, Buffers
from dsacp.drafting_cache.geometry import StepGeometry
from dsacp.drafting_cache.types import BoundInputs, GroupMetadata, GroupSpec
from dsacp.drafting_cache.types import StepMetadata as Metadata
from dsacp.kernels import CompressorRows, compressor_row_count


def step_view(
    buffers: Buffers,
    groups: tuple[GroupSpec, ...],
    block_tables: Mapping[str, Tensor],
    inputs: BoundInputs,
    shard: TokenShard,
    step: int,
    geometry: StepGeometry,
    generation: int,
) -> Metadata:
    """Return the metadata of ``step`` in ``geometry``; allocates no device memory."""
    shard = shard.resize(geometry.tokens)
    rope = buffers.rope.proxy(step, shard.padded)
    return Metadata(
        draft_index=step,
        num_reqs=geometry.rows,
        num_tokens=geometry.tokens,
        num_real_reqs=inputs.num_reqs[:1],
        shard=shard,
        groups={
            group.name: _group_view(
                buffers, group, block_tables[group.name], step, geometry.rows, shard.padded
            )
            for group in groups
        },
        rope=rope,
        local_rope=rope[shard.start : shard.end],
        generation=generation,
    )


def _group_view(
    buffers: Buffers, group: GroupSpec, table: Tensor, step: int, rows: int, tokens: int
) -> GroupMetadata:
    def view(field: str, words: int | None = None) -> Tensor:
        return buffers.words.view((group.name, step, field), words)

    return GroupMetadata(
        query_start_loc=view("query_start_loc", rows + 1),
        seq_lens=view("seq_lens", rows),
        local_query_start_loc=view("local_query_start_loc", rows + 1),
        local_seq_lens=view("local_seq_lens", rows),
        start_pos=view("start_pos", rows),
        positions=view("positions", tokens),
        slot_mapping=view("slot_mapping", tokens) if group.has_slots else None,
        block_table=table[:rows],
        sas_metadata=None if group.sas is None else view("sas_metadata"),
        qli_metadata=None if group.qli is None else view("qli_metadata"),
        compressor=compressor_view(
            buffers, group, step, 0, compressor_row_count(tokens, rows, group.compress_ratio)
        ),
    )


def compressor_view(
    buffers: Buffers, group: GroupSpec, step: int, start: int, end: int
) -> CompressorRows | None:
    """Return compressed rows ``[start, end)`` of a step; None for a group without any."""
    if not group.compressor or buffers.floats is None:
        return None
    words, floats = buffers.words, buffers.floats
    rotary_dim = buffers.compress_tables[group.compress_ratio][0].shape[-1]
    slots, positions, requests = (
        words.view((group.name, step, field), end)[start:] for field in COMPRESSOR_WORDS
    )
    cos, sin = (
        floats.view((group.name, step, field), end * rotary_dim).view(end, rotary_dim)[start:]
        for field in COMPRESSOR_ROPE
    )
    return CompressorRows(slots, positions, requests, cos, sin)
