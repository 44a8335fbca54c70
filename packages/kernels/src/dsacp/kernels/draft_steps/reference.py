"""All draft steps of all groups in torch: the oracle of the Triton kernel."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dsacp.core import CapacityError, TokenShard
from dsacp.kernels.draft_steps.advance import (
    DEAD,
    StepValues,
    first_starts,
    first_step_values,
    later_step_values,
    limit_lengths,
)
from dsacp.kernels.draft_steps.numbers import StepNumbers, smallest_table
from dsacp.kernels.fields import DRAFT_FIELDS, START_FIELDS, field_length
from dsacp.kernels.slot_mapping.reference import flat_slots


def draft_steps(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    drafts: Tensor | None,
    tables: Sequence[Tensor],
    pointers: Tensor,  # noqa: ARG001  # addresses are for the device kernel; torch has the tensors
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    numbers: Sequence[int],
) -> None:
    """Write every present field of every step; ``tables`` are block, cos and sin tables."""
    call, shards = _unpack(tuple(numbers))
    block_tables, cos_tables, sin_tables = call.split(tables)
    row_counts, start_counts, first_step = call.row_counts, call.starts_to, call.first_step
    rows = row_counts[0]
    real = num_reqs.clamp(0, rows)
    given = query_start_loc[: rows + 1].clamp(0, shards[0].num_tokens)
    last = given.index_select(0, real)
    lens = seq_lens[:rows] * (torch.arange(rows, device=arena.device) < real)
    pad_len = None if call.repeat_padding else call.pad_query_len
    repeats = start_counts[0] - rows
    starts = first_starts(given, real, last, pad_len, shards[0].num_tokens, repeats)
    queries = given[1:] - given[:-1]
    # Query tokens of rows that take part in steps >= 1; torch costs by the operator, so that the
    # first step, which every row takes part in, goes without.
    part = queries if drafts is None else queries * (drafts[:rows] != 0)
    limited, over = lens, None
    if first_step and call.causal:
        lens = lens.masked_fill_(part <= 0, 0)
        limited, over = limit_lengths(lens, first_step, call.max_model_len, call.saturate)
    steps = [first_step_values(starts, limited, shards[0], call.causal, over, call.max_model_len)]
    if len(row_counts) > 1:
        alive = torch.minimum(lens, part) > 0
        rejected = num_rejected[:rows].clamp(min=0).minimum(queries)
        base = torch.where(alive, lens - rejected, DEAD)
        if not call.saturate:
            # without a token of its own a row has no slot, like one that the host has reset
            fewest = first_step if call.causal else 0
            short = alive & (base <= fewest)
            base.masked_fill_(short if over is None else over | short, call.max_model_len)
        stop = real if call.repeat_padding else None
        steps += later_step_values(
            base, stop, row_counts, start_counts, shards, call.max_model_len, call.saturate
        )
    copies = _field_copies(steps, block_tables, call, arena, layout, shards)
    gathers = _rope_gathers(steps, cos_tables, sin_tables, rope_bank, rope_layout, first_step)
    for target, value in copies:
        target.copy_(value)
    for target, table, index in gathers:
        torch.index_select(table, 0, index, out=target)


@lru_cache(maxsize=256)
def _unpack(numbers: tuple[int, ...]) -> tuple[StepNumbers, tuple[TokenShard, ...]]:
    """Return a call's integers and its steps' shards, which the next batch of a shape has too."""
    call = StepNumbers.unpack(numbers)
    shards = (TokenShard(tokens, call.tp_size, call.tp_rank) for tokens in call.token_counts)
    return call, tuple(shards)


def _field_copies(
    steps: Sequence[StepValues],
    block_tables: Sequence[Tensor],
    call: StepNumbers,
    arena: Tensor,
    layout: Tensor,
    shards: Sequence[TokenShard],
) -> list[tuple[Tensor, Tensor]]:
    """Pair every present field's view with its value; nothing is written yet."""
    padded = [shard.padded for shard in shards]
    position = torch.cat([step.slot_position for step in steps])
    row = torch.cat([step.token_row for step in steps])
    known = smallest_table(block_tables)
    if known < call.row_counts[0]:
        position = position.masked_fill_(row >= known, -1)
    copies = []
    counts = list(zip(call.row_counts, call.starts_to, padded, strict=True))
    offsets = layout.tolist()
    for table, block_size, group in zip(block_tables, call.block_sizes, offsets, strict=True):
        slots = flat_slots(position, row, table, block_size).split_with_sizes(padded)
        for index, (step, (rows, last, tokens)) in enumerate(zip(steps, counts, strict=True)):
            for field, offset in zip(DRAFT_FIELDS, group[call.first_step + index], strict=True):
                if offset >= 0:
                    size = field_length(field, last if field in START_FIELDS else rows, tokens)
                    value = slots[index] if field == "slot_mapping" else step.fields[field]
                    copies.append((_view(arena, offset, size, field), value[:size]))
    return copies


def _rope_gathers(
    steps: Sequence[StepValues],
    cos_tables: Sequence[Tensor],
    sin_tables: Sequence[Tensor],
    rope_bank: Tensor,
    rope_layout: Tensor,
    first_step: int,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Pair every present RoPE bank's view with its table and row indices."""
    gathers = []
    for tables in zip(cos_tables, sin_tables, rope_layout.tolist(), strict=True):
        length, dim = tables[0].shape
        for index, step in enumerate(steps):
            tokens = step.slot_position.numel()
            position = step.fields["positions"][:tokens].clamp(max=length - 1)
            for table, offset in zip(tables[:2], tables[2][first_step + index], strict=True):
                if offset >= 0:
                    view = _view(rope_bank, offset, tokens * dim, "cos/sin")
                    gathers.append((view.view(tokens, dim), table, position))
    return gathers


def _view(storage: Tensor, offset: int, size: int, field: str) -> Tensor:
    if offset + size > storage.numel():
        raise CapacityError(
            f"expected {field} to end inside its storage of {storage.numel()} words, found words "
            f"[{offset}, {offset + size}): allocate the bank for this many rows"
        )
    return storage[offset : offset + size]
