"""Frozen metadata as views of the persistent buffers; a bucket is a prefix."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from dsacp.core import TokenShard
from dsacp.drafting_cache.buffers import COMPRESSOR_ROPE, COMPRESSOR_WORDS, Buffers
from dsacp.drafting_cache.geometry import StepGeometry
from dsacp.drafting_cache.types import GroupMetadata, GroupSpec
from dsacp.drafting_cache.types import StepMetadata as Metadata
from dsacp.kernels import CompressorRows, compressor_row_count
from dsacp.rope_proxy import RopeRows

CACHED_VIEWS = 512
"""Counts of rows and of tokens, and whole later steps, whose views are kept for all shapes."""


@dataclass(frozen=True)
class TokenViews:
    """What depends on a step's tokens alone: its slice of them, RoPE rows, a pair a group."""

    shard: TokenShard
    rope: RopeRows
    local_rope: RopeRows
    fields: Mapping[str, tuple[Tensor, Tensor | None]]


class StepViews:
    """The metadata of steps, whose tensors are shared by every shape of as many rows or tokens.

    A shape of its own costs integers and a few references: serving sees a thousand of them, made
    of a few hundred counts. No device memory is allocated.

    Args:
        buffers: the storages.
        groups: KV groups.
        block_tables: by group name, read in place.
        num_reqs: int32 [1] on the device.
        shard: any shard of the rank.
        generation: of the buffers.
    """

    def __init__(
        self,
        buffers: Buffers,
        groups: tuple[GroupSpec, ...],
        block_tables: Mapping[str, Tensor],
        num_reqs: Tensor,
        shard: TokenShard,
        generation: int,
    ) -> None:
        self._buffers = buffers
        self._groups = groups
        self._block_tables = block_tables
        self._num_reqs = num_reqs[:1]
        self._shard = shard
        self._generation = generation
        self._rows = lru_cache(CACHED_VIEWS)(self._make_rows)
        self._tokens = lru_cache(CACHED_VIEWS)(self._make_tokens)
        self._plans = lru_cache(None)(self._make_plans)
        self._compressed = lru_cache(CACHED_VIEWS)(self._make_compressed)
        # Later steps follow from rows alone, so that most shapes have the same ones.
        self._later = lru_cache(CACHED_VIEWS)(self._make_step)

    def close(self) -> None:
        """Drop every view, so that the storages are freed now and not by a later collection."""
        for cached in (self._rows, self._tokens, self._plans, self._compressed, self._later):
            cached.cache_clear()
        del self._buffers, self._block_tables, self._num_reqs

    def step(self, step: int, geometry: StepGeometry) -> Metadata:
        """Return the metadata of ``step`` in ``geometry``."""
        return (self._later if step else self._make_step)(step, geometry)

    def _make_step(self, step: int, geometry: StepGeometry) -> Metadata:
        tokens = self._tokens(step, geometry.tokens)
        return Metadata(
            draft_index=step,
            num_reqs=geometry.rows,
            num_tokens=geometry.tokens,
            num_real_reqs=self._num_reqs,
            shard=tokens.shard,
            groups={
                group.name: self._group(group, step, geometry.rows, tokens)
                for group in self._groups
            },
            rope=tokens.rope,
            local_rope=tokens.local_rope,
            generation=self._generation,
        )

    def _group(self, group: GroupSpec, step: int, rows: int, tokens: TokenViews) -> GroupMetadata:
        starts, lengths, local_starts, local_lengths, start_pos, table = self._rows(
            group.name, step, rows
        )
        sas, qli = self._plans(group, step)
        positions, slots = tokens.fields[group.name]
        count = compressor_row_count(tokens.shard.padded, rows, group.compress_ratio)
        return GroupMetadata(
            query_start_loc=starts,
            seq_lens=lengths,
            local_query_start_loc=local_starts,
            local_seq_lens=local_lengths,
            start_pos=start_pos,
            positions=positions,
            slot_mapping=slots,
            block_table=table,
            sas_metadata=sas,
            qli_metadata=qli,
            compressor=self._compressed(group, step, count),
        )

    def _make_rows(self, name: str, step: int, rows: int) -> tuple[Tensor, ...]:
        view = self._buffers.words.view
        return (
            view((name, step, "query_start_loc"), rows + 1),
            view((name, step, "seq_lens"), rows),
            view((name, step, "local_query_start_loc"), rows + 1),
            view((name, step, "local_seq_lens"), rows),
            view((name, step, "start_pos"), rows),
            self._block_tables[name][:rows],
        )

    def _make_tokens(self, step: int, num_tokens: int) -> TokenViews:
        shard, view = self._shard.resize(num_tokens), self._buffers.words.view
        rope = self._buffers.rope.proxy(step, shard.padded)
        fields = {
            group.name: (
                view((group.name, step, "positions"), shard.padded),
                view((group.name, step, "slot_mapping"), shard.padded) if group.has_slots else None,
            )
            for group in self._groups
        }
        return TokenViews(shard, rope, rope[shard.start : shard.end], fields)

    def _make_compressed(self, group: GroupSpec, step: int, count: int) -> CompressorRows | None:
        return compressor_view(self._buffers, group, step, 0, count)

    def _make_plans(self, group: GroupSpec, step: int) -> tuple[Tensor | None, Tensor | None]:
        view = self._buffers.words.view
        return (
            None if group.sas is None else view((group.name, step, "sas_metadata")),
            None if group.qli is None else view((group.name, step, "qli_metadata")),
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
