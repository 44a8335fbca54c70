"""Greedy sampling, verification of drafts and the drafter's inputs, all on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleRows:
    """Which hidden rows are sampled.

    Attributes:
        rows: int64 [R, K+1], token rows; column j follows j drafts. Clamped on unused entries.
        drafts: int32 [R, K], the draft after each row but the last.
        used: bool [R, K+1], entries that a real request samples.
    """

    rows: Tensor
    drafts: Tensor
    used: Tensor


@dataclass(frozen=True)
class Verified:
    """What verification gives; rows of padding and of unfinished prompts emit nothing.

    Attributes:
        tokens: int32 [R, K+1], emitted tokens, -1 behind them.
        num_emitted: int32 [R], accepted drafts and one bonus token.
        num_rejected: int32 [R], drafts refused.
        next_tokens: int32 [R], the token after the last accepted position.
        sample_indices: int64 [R], row of that position; 0 on padding.
    """

    tokens: Tensor
    num_emitted: Tensor
    num_rejected: Tensor
    next_tokens: Tensor
    sample_indices: Tensor


def top_margin(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best entry of each row as int32 and its distance to the second best."""
    best, order = scores.topk(2, dim=-1)
    return order[..., 0].int(), best[..., 0] - best[..., 1]


def sample_rows(
    input_ids: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_drafts: Tensor,
    known_next: Tensor,
    max_drafts: int,
) -> SampleRows:
    """Find the rows to sample: a request's last token and the drafts before it.

    Args:
        input_ids: int32 [Tp].
        query_start_loc: int32 [R+1], global starts.
        seq_lens: int32 [R], 0 on padding.
        num_drafts: int32 [R], drafts at the end of each request's tokens.
        known_next: int32 [R], the next prompt token of an unfinished prompt, else -1.
        max_drafts: K.
    """
    places = torch.arange(max_drafts + 1, device=input_ids.device)
    ends = query_start_loc[1:].long()
    rows = (ends - 1 - num_drafts).unsqueeze(-1) + places
    sampling = (seq_lens > 0) & (known_next < 0)
    used = sampling.unsqueeze(-1) & (places <= num_drafts.unsqueeze(-1))
    last = input_ids.shape[0] - 1
    drafts = input_ids[(rows[:, :max_drafts] + 1).clamp(0, last)]
    return SampleRows(rows.clamp(0, last), drafts, used)


def verify(
    rows: SampleRows,
    sampled: Tensor,
    num_drafts: Tensor,
    known_next: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
) -> Verified:
    """Accept the longest prefix of drafts that equals the target's choice, and one token more.

    Args:
        rows: from ``sample_rows``.
        sampled: int32 [R, K+1], the target's choice at each row.
        num_drafts: int32 [R].
        known_next: int32 [R].
        query_start_loc: int32 [R+1].
        seq_lens: int32 [R].
    """
    agree = (rows.drafts == sampled[:, :-1]) & rows.used[:, 1:]
    accepted = agree.int().cumprod(dim=1).sum(dim=1, dtype=torch.int32)
    sampling = rows.used[:, 0]
    num_emitted = torch.where(sampling, accepted + 1, 0).int()
    places = torch.arange(sampled.shape[1], device=sampled.device)
    emitted = torch.where(places < num_emitted.unsqueeze(-1), sampled, -1)
    bonus = sampled.gather(1, accepted.long().unsqueeze(-1)).squeeze(-1)
    rejected = torch.where(sampling, num_drafts - accepted, 0).int()
    last = query_start_loc[1:].long() - 1 - rejected
    return Verified(
        tokens=emitted,
        num_emitted=num_emitted,
        num_rejected=rejected,
        next_tokens=torch.where(known_next < 0, bonus, known_next),
        sample_indices=torch.where(seq_lens > 0, last, 0),
    )


def shift_ids(input_ids: Tensor, verified: Verified, seq_lens: Tensor) -> Tensor:
    """Return the drafter's tokens [Tp]: each position's successor, the new token at the last one.

    Rows of refused drafts get a stale successor; their keys are overwritten before a read.
    """
    count = input_ids.shape[0]
    shifted = torch.cat((input_ids[1:], input_ids.new_zeros(2)))
    target = torch.where(seq_lens > 0, verified.sample_indices, count)
    return shifted.index_copy(0, target, verified.next_tokens.to(shifted.dtype))[:count]
