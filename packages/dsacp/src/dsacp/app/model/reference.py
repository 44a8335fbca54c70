"""Target and drafter with the caches of this process's ranks, as functions of metadata alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.caches import LayerCaches, draft_caches, target_caches
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.drafter import Proposal, propose
from dsacp.app.model.inputs import ModelInputs
from dsacp.app.model.join import Join, join_simulated
from dsacp.app.model.sampling import (
    SampleRows,
    sample_rows,
    shift_ids,
    top_margin,
    verify,
)
from dsacp.app.model.target import logits, target_forward
from dsacp.app.model.weights import ModelWeights
from dsacp.app.replay.passes import Steps, TargetResult
from dsacp.core import DraftCapacity, LayoutError
from dsacp.drafting_cache import GroupMetadata, StepMetadata


@dataclass(frozen=True)
class ReferenceModel:
    """One executor's model: shared weights, caches of this process's ranks, and inputs.

    ``target`` and ``draft`` read nothing of the host, so that both can be captured.

    Attributes:
        config: model sizes.
        weights: may be shared between executors.
        num_draft_tokens: K.
        inputs: persistent buffers; write a step's tokens before running it.
        target_caches: by rank, then by layer.
        draft_caches: by rank.
        join: brings the rows of all ranks together.
    """

    config: ModelConfig
    weights: ModelWeights
    num_draft_tokens: int
    inputs: ModelInputs
    target_caches: tuple[tuple[LayerCaches, ...], ...]
    draft_caches: tuple[LayerCaches, ...]
    join: Join = join_simulated

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        weights: ModelWeights,
        capacity: DraftCapacity,
        num_blocks: Mapping[str, int],
        num_ranks: int | None = None,
        join: Join = join_simulated,
    ) -> "ReferenceModel":
        """Allocate inputs and caches where the weights live.

        Args:
            config: model sizes.
            weights: give device and float type.
            capacity: bounds of the batches, and the number of ranks.
            num_blocks: pages by KV group, the null page included.
            num_ranks: ranks of this process, all by default.
            join: brings the rows of all ranks together.
        """
        dtype, device = weights.embedding.dtype, weights.embedding.device
        ranks = range(capacity.tp_size if num_ranks is None else num_ranks)
        return cls(
            config=config,
            weights=weights,
            num_draft_tokens=capacity.num_draft_tokens,
            inputs=ModelInputs.allocate(capacity.max_tokens, capacity.max_reqs, device),
            target_caches=tuple(target_caches(config, num_blocks, dtype, device) for _ in ranks),
            draft_caches=tuple(draft_caches(config, num_blocks, dtype, device) for _ in ranks),
            join=join,
        )

    def target(self, steps: tuple[Steps, ...]) -> TargetResult:
        """Run the target over every rank's one step, sample and verify the drafts.

        Args:
            steps: by rank.
        """
        metadata = [step for (step,) in steps]
        group = metadata[0].groups["swa"]
        token_ids = self._token_ids(metadata[0])
        hidden = target_forward(
            self.config, self.weights, token_ids, metadata, self.target_caches, self.join
        )
        rows = self._sample_rows(token_ids, group)
        tokens, margins = top_margin(logits(self.weights, hidden[rows.rows]))
        count = group.seq_lens.shape[0]
        verified = verify(
            rows,
            tokens,
            self.inputs.num_drafts[:count],
            self.inputs.known_next[:count],
            group.query_start_loc,
            group.seq_lens,
        )
        return TargetResult(hidden, verified, margins.masked_fill(~rows.used, torch.inf))

    def draft(self, steps: tuple[Steps, ...], target: TargetResult | None) -> Proposal:
        """Draft K tokens a request.

        Args:
            steps: by rank, then by draft step.
            target: of the same batch.

        Raises:
            LayoutError: the target did not run.
        """
        if target is None:
            raise LayoutError(
                "expected the target's result of this batch, found none: run it first"
            )
        first = steps[0][0]
        (group,) = first.groups.values()
        shifted = shift_ids(self._token_ids(first), target.verified, group.seq_lens)
        return propose(
            self.config,
            self.weights,
            shifted,
            target.hidden,
            target.verified.sample_indices,
            tuple(zip(*steps, strict=True)),
            self.draft_caches,
            self.join,
        )

    def _token_ids(self, step: StepMetadata) -> Tensor:
        return self.inputs.token_ids[: step.shard.padded]

    def _sample_rows(self, token_ids: Tensor, group: GroupMetadata) -> SampleRows:
        count = group.seq_lens.shape[0]
        return sample_rows(
            token_ids,
            group.query_start_loc,
            group.seq_lens,
            self.inputs.num_drafts[:count],
            self.inputs.known_next[:count],
            self.num_draft_tokens,
        )
