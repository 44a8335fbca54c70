"""All draft steps of all groups in torch: the oracle of the Triton kernel.

Rows past the real batch carry the position ``_DEAD``, so that one clamp makes them inert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import CapacityError, TokenShard
from dsacp.kernels.fields import DRAFT_FIELDS, field_length
from dsacp.kernels.slot_mapping.reference import flat_slots

_DEAD = -(1 << 30)


@dataclass(frozen=True)
class _Values:
    """Fields of one step, each at least as long as its buffer, and what its tokens look up."""

    fields: Mapping[str, Tensor]
    slot_position: Tensor
    token_row: Tensor


def draft_steps(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    block_tables: Sequence[Tensor],
    cos_tables: Sequence[Tensor],
    sin_tables: Sequence[Tensor],
    pointers: Tensor,  # noqa: ARG001  # addresses are for the device kernel; torch has the tensors
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    block_sizes: Sequence[int],
    row_counts: Sequence[int],
    token_counts: Sequence[int],
    first_step: int,
    tp_size: int,
    tp_rank: int,
    pad_query_len: int,
    max_model_len: int,
    saturate: bool,
    repeat_padding: bool,
    causal: bool,
) -> None:
    """Write every present field of every step; see the package function."""
    shards = [TokenShard(tokens, tp_size, tp_rank) for tokens in token_counts]
    rows = row_counts[0]
    real = num_reqs.clamp(0, rows)
    last = query_start_loc.index_select(0, real)
    lens = seq_lens[:rows] * (torch.arange(rows, device=arena.device) < real)
    pad_len = 0 if repeat_padding else pad_query_len
    starts = _first_starts(query_start_loc[: rows + 1], real, last, pad_len, shards[0].num_tokens)
    steps = [_first_step(starts, lens, shards[0], causal)]
    if len(row_counts) > 1:
        base = torch.where(lens > 0, lens - num_rejected[:rows], _DEAD)
        stop = real if repeat_padding else None
        steps += _later_steps(base, stop, row_counts, shards, max_model_len, saturate)
    copies = _field_copies(
        steps, block_tables, block_sizes, arena, layout, first_step, row_counts, shards
    )
    gathers = _rope_gathers(steps, cos_tables, sin_tables, rope_bank, rope_layout, first_step)
    for target, value in copies:
        target.copy_(value)
    for target, table, index in gathers:
        torch.index_select(table, 0, index, out=target)


def _first_starts(
    given: Tensor, real: Tensor, last: Tensor, pad_len: int, num_tokens: int
) -> Tensor:
    beyond = torch.arange(given.numel(), dtype=torch.int32, device=given.device) - real
    if pad_len == 0:
        return torch.where(beyond > 0, last, given)
    pad = (last + beyond * pad_len).clamp_(max=num_tokens)
    # The attention op wants the last start to be the padded token count (spec ascend 3.5).
    pad[-1:] = num_tokens
    return torch.where(beyond > 0, pad, given)


def _first_step(starts: Tensor, lens: Tensor, shard: TokenShard, causal: bool) -> _Values:
    begins, ends = starts[:-1], starts[1:]
    local = starts.clamp(shard.start, shard.end).sub_(shard.start)
    owned = local[1:] > local[:-1]
    visible = lens - (ends - (local[1:] + shard.start)) if causal else lens
    start_pos = (lens - (ends - begins)).clamp_(min=0)
    # One entry more than requests: tokens past the last start belong to nobody.
    offset = starts.new_full(starts.shape, _DEAD)
    offset[:-1] = torch.where(lens > 0, start_pos - begins, _DEAD)
    tokens = torch.arange(shard.padded, dtype=torch.int32, device=starts.device)
    row = torch.searchsorted(ends, tokens, right=True, out_int32=True)
    position = tokens.add_(offset.index_select(0, row))
    fields = {
        "query_start_loc": starts,
        "seq_lens": lens,
        "local_query_start_loc": local,
        "local_seq_lens": visible.clamp(min=0).mul_(owned),
        "start_pos": start_pos,
        "positions": position.clamp(min=0),
    }
    return _Values(fields, position, row)


def _later_steps(
    base: Tensor,
    stop: Tensor | None,
    row_counts: Sequence[int],
    shards: Sequence[TokenShard],
    max_model_len: int,
    saturate: bool,
) -> list[_Values]:
    """Advance every request by one token a step; ``base`` is the position at step 1."""
    count, width = len(shards) - 1, max(shard.padded for shard in shards[1:])
    known = min(width, row_counts[0])
    position = base.new_full((count, width), _DEAD)
    ahead = torch.arange(count, dtype=torch.int32, device=base.device)[:, None]
    torch.add(base[:known], ahead, out=position[:, :known])
    if saturate:
        position.clamp_(max=max_model_len - 1)
        slot_position = position
    else:
        over = position >= max_model_len
        slot_position = position.masked_fill(over, -1)
        position = position.masked_fill_(over, 0)
    length = (position + 1).clamp_(min=0)
    inert = position.clamp(min=0)
    row = torch.arange(width + 1, dtype=torch.int32, device=base.device)
    starts = row if stop is None else torch.minimum(row, stop)
    steps = []
    for index, shard in enumerate(shards[1:]):
        local = starts.clamp(shard.start, shard.end).sub_(shard.start)
        fields = {
            "query_start_loc": starts,
            "seq_lens": length[index],
            "local_query_start_loc": local,
            # A one-token row is seen whole by its owner, so the length needs no correction.
            "local_seq_lens": length[index] * (local[1:] > local[:-1]),
            "start_pos": inert[index],
            "positions": inert[index],
        }
        steps.append(_Values(fields, slot_position[index, : shard.padded], row[: shard.padded]))
    return steps


def _field_copies(
    steps: Sequence[_Values],
    block_tables: Sequence[Tensor],
    block_sizes: Sequence[int],
    arena: Tensor,
    layout: Tensor,
    first_step: int,
    row_counts: Sequence[int],
    shards: Sequence[TokenShard],
) -> list[tuple[Tensor, Tensor]]:
    """Pair every present field's view with its value; nothing is written yet."""
    padded = [shard.padded for shard in shards]
    position = torch.cat([step.slot_position for step in steps])
    row = torch.cat([step.token_row for step in steps])
    copies = []
    for table, block_size, group in zip(block_tables, block_sizes, layout.tolist(), strict=True):
        slots = flat_slots(position, row, table, block_size).split(padded)
        for index, (step, rows, tokens) in enumerate(zip(steps, row_counts, padded, strict=True)):
            for field, offset in zip(DRAFT_FIELDS, group[first_step + index], strict=True):
                if offset >= 0:
                    size = field_length(field, rows, tokens)
                    value = slots[index] if field == "slot_mapping" else step.fields[field]
                    copies.append((_view(arena, offset, size, field), value[:size]))
    return copies


def _rope_gathers(
    steps: Sequence[_Values],
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
