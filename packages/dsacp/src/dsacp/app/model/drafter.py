"""The MTP drafter: K passes of one window layer, in one function that a graph can hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.caches import LayerCaches
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.groups import DRAFT_GROUP, DRAFT_LAYER
from dsacp.app.model.join import Join, join_simulated
from dsacp.app.model.layer import LayerShape, RankStep, run_layer
from dsacp.app.model.ops import fit_rows, rms_norm
from dsacp.app.model.sampling import top_margin
from dsacp.app.model.target import logits
from dsacp.app.model.weights import ModelWeights
from dsacp.drafting_cache import StepMetadata

SHAPE = LayerShape(DRAFT_LAYER, DRAFT_GROUP, 1)


@dataclass(frozen=True)
class Proposal:
    """Drafts of one engine step.

    Attributes:
        drafts: int32 [rows, K]; rows of padding hold anything.
        margins: [rows, K], distance of the best logit to the second.
    """

    drafts: Tensor
    margins: Tensor


def draft_forward(
    config: ModelConfig,
    weights: ModelWeights,
    input_ids: Tensor,
    hidden: Tensor,
    metadata: Sequence[StepMetadata],
    caches: Sequence[LayerCaches],
    join: Join = join_simulated,
) -> Tensor:
    """Run the drafter once.

    Args:
        config: model sizes.
        weights: shared with the target.
        input_ids: int [Tp], the token *after* each position.
        hidden: [Tp, H], the target's (later the drafter's own) hidden state at each position.
        metadata: this draft step of each rank.
        caches: of each rank.
        join: brings the rows of all ranks together.

    Returns:
        Hidden states [Tp, H].
    """
    token = rms_norm(weights.embedding[input_ids.long()])
    mixed = token @ weights.draft_embedding + rms_norm(hidden) @ weights.draft_hidden
    ranks = [RankStep(step, cache) for step, cache in zip(metadata, caches, strict=True)]
    return run_layer(config, SHAPE, weights.draft_layer, mixed, ranks, join)


def propose(
    config: ModelConfig,
    weights: ModelWeights,
    input_ids: Tensor,
    hidden: Tensor,
    sample_indices: Tensor,
    steps: Sequence[Sequence[StepMetadata]],
    caches: Sequence[LayerCaches],
    join: Join = join_simulated,
) -> Proposal:
    """Draft K tokens a request: step 0 over the target's batch, then one token a row.

    Args:
        config: model sizes.
        weights: shared with the target.
        input_ids: int [Tp], the step's tokens shifted by one (``sampling.shift_ids``).
        hidden: [Tp, H], the target's hidden states.
        sample_indices: int [rows], each request's last accepted token.
        steps: by draft step, then by rank.
        caches: of each rank.
        join: brings the rows of all ranks together.
    """
    first, *later = steps
    rows = sample_indices.shape[0]
    hidden = draft_forward(config, weights, input_ids, hidden, first, caches, join)
    hidden = hidden[sample_indices.long()]
    tokens, margin = top_margin(logits(weights, hidden))
    drafts, margins = [tokens], [margin]
    for step in later:
        count = step[0].shard.padded
        ids, state = fit_rows(tokens, count), fit_rows(hidden, count)
        hidden = draft_forward(config, weights, ids, state, step, caches, join)
        hidden = fit_rows(hidden, rows)
        tokens, margin = top_margin(logits(weights, hidden))
        drafts.append(tokens)
        margins.append(margin)
    return Proposal(torch.stack(drafts, 1), torch.stack(margins, 1))
