"""Values of every draft step in torch, before they are placed in an arena.

Rows past the real batch carry the position ``DEAD``, so that one clamp makes them inert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import TokenShard

DEAD = -(1 << 30)


@dataclass(frozen=True)
class StepValues:
    """One step of every group.

    Attributes:
        fields: int32 values by field name, each at least as long as its buffer; no slots.
        slot_position: int32 [padded tokens], position in the cache; negative without a slot.
        token_row: int32 [padded tokens], request of each token.
    """

    fields: Mapping[str, Tensor]
    slot_position: Tensor
    token_row: Tensor


def first_starts(
    given: Tensor,
    real: Tensor,
    last: Tensor,
    pad_len: int | None,
    num_tokens: int,
    repeats: int,
) -> Tensor:
    """Return the query starts of the first step, int32 [R+1+repeats].

    Args:
        given: int32 [R+1], the staged starts; entries past ``real`` are ignored.
        real: int32 [1], real requests.
        last: int32 [1], the start after the last real request.
        pad_len: query tokens of a padded request; None repeats ``last``.
        num_tokens: the host's padded tokens, which no start exceeds.
        repeats: entries past the step's rows, which repeat the last start.
    """
    beyond = torch.arange(given.numel(), dtype=torch.int32, device=given.device) - real
    pad = last if pad_len is None else (last + beyond * pad_len).clamp_(max=num_tokens)
    if pad_len is not None:
        # The attention op wants the last start to be the padded token count (upstream U38).
        pad[-1:] = num_tokens
    starts = torch.where(beyond > 0, pad, given)
    return torch.cat((starts, starts[-1:].expand(repeats))) if repeats else starts


def limit_lengths(
    lens: Tensor, step: int, max_model_len: int, saturate: bool
) -> tuple[Tensor, Tensor]:
    """Apply the overflow rule to a causal step that is computed on its own.

    Step ``step`` of a request has more than ``step`` tokens; fewer mean that the host has already
    reset the row, in this step or an earlier one, and a slot would overwrite the first tokens.

    Returns:
        The lengths int32 [R], and which rows were reset, bool [R].
    """
    if saturate:
        return lens.clamp(max=max_model_len), torch.zeros_like(lens, dtype=torch.bool)
    over = (lens > 0) & ((lens > max_model_len) | (lens <= step))
    return lens.masked_fill(over, 1), over


def first_step_values(
    starts: Tensor,
    lens: Tensor,
    shard: TokenShard,
    causal: bool,
    over: Tensor | None,
    max_model_len: int,
) -> StepValues:
    """Return the first step from its starts [>= R+1] and lengths [R], 0 on padded rows.

    Rows in ``over``, bool [R] or None for none, keep position 0 and have no slot. A block that is
    not causal may reach past ``max_model_len``, where a slot would be another request's: it has
    none there.
    """
    rows = lens.numel()
    begins, ends = starts[:rows], starts[1 : rows + 1]
    local = starts.clamp(shard.start, shard.end).sub_(shard.start)
    local_ends = local[1 : rows + 1]
    owned = local_ends > local[:rows]
    visible = lens - (ends - (local_ends + shard.start)) if causal else lens
    start_pos = (lens - (ends - begins)).clamp_(min=0)
    # One entry more than requests: tokens past the last start belong to nobody.
    offset = starts.new_full((rows + 1,), DEAD)
    live = lens > 0
    offset[:rows] = torch.where(live if over is None else live & ~over, start_pos - begins, DEAD)
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
    if not causal:
        position = position.masked_fill(position >= max_model_len, -1)
    return StepValues(fields, position, row)


def later_step_values(
    base: Tensor,
    stop: Tensor | None,
    row_counts: Sequence[int],
    start_counts: Sequence[int],
    shards: Sequence[TokenShard],
    max_model_len: int,
    saturate: bool,
) -> list[StepValues]:
    """Advance every request by one token a step; ``base`` is the position at step 1.

    ``row_counts`` and ``start_counts`` have the first step's too.
    """
    count, width = len(shards) - 1, max(shard.padded for shard in shards[1:])
    known = min(width, row_counts[0])
    position = base.new_full((count, width), DEAD)
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
    entries = max(width, *start_counts[1:]) + 1
    row = torch.arange(entries, dtype=torch.int32, device=base.device)
    steps = []
    for index, shard in enumerate(shards[1:]):
        starts = _later_starts(row, stop, row_counts[index + 1], start_counts[index + 1])
        local = starts.clamp(shard.start, shard.end).sub_(shard.start)
        fields = {
            "query_start_loc": starts,
            "seq_lens": length[index],
            "local_query_start_loc": local,
            # A one-token row is seen whole by its owner, so the length needs no correction.
            "local_seq_lens": length[index] * (local[1 : width + 1] > local[:width]),
            "start_pos": inert[index],
            "positions": inert[index],
        }
        steps.append(StepValues(fields, slot_position[index, : shard.padded], row[: shard.padded]))
    return steps


def _later_starts(row: Tensor, stop: Tensor | None, rows: int, start_count: int) -> Tensor:
    """Return starts of one token a request, which repeat past ``rows`` or from ``stop`` on."""
    if stop is not None:
        return torch.minimum(row, stop)
    return row.clamp(max=rows) if start_count > rows else row
