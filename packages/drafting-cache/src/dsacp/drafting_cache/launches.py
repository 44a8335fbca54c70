"""The kernel launches of a build, each over all groups and steps at once."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dsacp.core import DraftCapacity
from dsacp.drafting_cache.buffers import Buffers
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.extents import Tail
from dsacp.drafting_cache.geometry import StepGeometry
from dsacp.drafting_cache.types import BoundInputs, StepMetadata
from dsacp.drafting_cache.views import compressor_view
from dsacp.kernels import (
    clear_tails,
    compressor_row_count,
    compressor_rows,
    prepare_draft_steps,
    sas_plan,
)
from dsacp.rope_proxy import RopeBanks


def fields_launch(
    config: BuilderConfig,
    buffers: Buffers,
    tables: Mapping[str, Tensor],
    inputs: BoundInputs,
    pointers: Tensor,
    geometries: Sequence[StepGeometry],
    first_step: int,
) -> Callable[[], None]:
    """Check and prepare the launch that writes everything but plans and compressed rows."""
    return prepare_draft_steps(
        inputs.query_start_loc,
        inputs.seq_lens,
        inputs.num_rejected,
        inputs.num_reqs,
        list(tables.values()),
        list(buffers.rope.cos_tables),
        list(buffers.rope.sin_tables),
        pointers,
        buffers.words.storage,
        buffers.layout,
        buffers.rope.storage,
        buffers.rope.layout,
        block_sizes=[group.block_size for group in config.groups],
        row_counts=[geometry.rows for geometry in geometries],
        token_counts=[geometry.tokens for geometry in geometries],
        first_step=first_step,
        tp_size=config.shard.tp_size,
        tp_rank=config.shard.tp_rank,
        pad_query_len=geometries[0].pad_query_len,
        max_model_len=config.max_model_len,
        saturate=config.overflow == "saturate",
        repeat_padding=config.padding == "repeat",
        causal=config.causal,
        start_counts=[
            max(geometry.rows, _captured_rows(config.capacity, step))
            for step, geometry in enumerate(geometries, first_step)
        ],
        drafts=inputs.drafts,
    )


def _captured_rows(capacity: DraftCapacity, step: int) -> int:
    """Return the rows of the largest capture, whose replay no later build sees."""
    return capacity.rows(step, capacity.capture_sizes[-1]) if capacity.capture_sizes else 0


def table_pointers(tables: Mapping[str, Tensor], rope: RopeBanks, device: torch.device) -> Tensor:
    """Return where kernels find the tables: int64 ``pointers`` of ``prepare_draft_steps``."""
    words: list[int] = []
    for table in tables.values():
        words += [table.data_ptr(), table.stride(0), table.shape[1]]
    for cos, sin in zip(rope.cos_tables, rope.sin_tables, strict=True):
        words += [cos.data_ptr(), sin.data_ptr()]
    return torch.tensor(words, dtype=torch.int64).to(device)


def compute_plans(buffers: Buffers, plans: Tensor) -> None:
    """Write every group's work split from its local starts and lengths."""
    words = buffers.words.storage
    sas_plan(words, words, words, plans)


def compute_rows(config: BuilderConfig, buffers: Buffers, step: StepMetadata) -> None:
    """Write the compressed rows that the step completes."""
    for group in config.groups:
        metadata = step.groups[group.name]
        rows = metadata.compressor
        if rows is None:
            continue
        cos, sin = buffers.compress_tables[group.compress_ratio]
        compressor_rows(
            metadata.query_start_loc,
            metadata.start_pos,
            metadata.block_table,
            cos,
            sin,
            ratio=group.compress_ratio,
            block_size=group.block_size,
            # A dummy request has queries but no length: it must complete nothing.
            seq_lens=metadata.seq_lens,
            out=rows,
        )


def clean_compressed(
    config: BuilderConfig,
    buffers: Buffers,
    tables: Mapping[str, Tensor],
    tail: Tail,
    table_rows: int,
) -> None:
    """Make inert the compressed rows that a larger batch completed: as rows of no request."""
    rows_from, rows_to = (min(rows, table_rows) for rows in (tail.rows_from, tail.rows_to))
    for group in config.groups:
        if not group.compressor:
            continue
        count = compressor_row_count(tail.tokens_from, rows_from, group.compress_ratio)
        used = compressor_row_count(tail.tokens_to, rows_to, group.compress_ratio)
        if count < used:
            cos, sin = buffers.compress_tables[group.compress_ratio]
            compressor_rows(
                buffers.staging.query_start_loc[:1],
                buffers.staging.seq_lens[:0],
                tables[group.name],
                cos,
                sin,
                ratio=group.compress_ratio,
                block_size=group.block_size,
                out=compressor_view(buffers, group, 0, count, used),
            )


def clean_tails(
    config: BuilderConfig, buffers: Buffers, first_step: int, tails: Sequence[Tail]
) -> None:
    """Make inert what a larger batch left beyond the rows and tokens of the next one."""
    shards = [config.shard.resize(tail.tokens_from) for tail in tails]
    clear_tails(
        buffers.words.storage,
        buffers.layout,
        buffers.rope.storage,
        buffers.rope.layout,
        [table.shape[1] for table in buffers.rope.cos_tables],
        first_step,
        rows_from=[tail.rows_from for tail in tails],
        rows_to=[tail.rows_to for tail in tails],
        tokens_from=[tail.tokens_from for tail in tails],
        tokens_to=[tail.tokens_to for tail in tails],
        last_starts=[tail.last_start for tail in tails],
        last_local_starts=[
            min(max(tail.last_start, shard.start), shard.end) - shard.start
            for tail, shard in zip(tails, shards, strict=True)
        ],
    )
