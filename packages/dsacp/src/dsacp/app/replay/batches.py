"""What the host hands to a builder for one engine step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.scheduling import EngineStep
from dsacp.drafting_cache import DraftBatch


@dataclass(frozen=True)
class HostBatch:
    """The tensors of one engine step.

    Attributes:
        step: the step they describe.
        bucket: captured size that the step fits, or None.
        query_start_loc: int32 [num_reqs + 1].
        seq_lens: int32 [num_reqs], with this step's tokens.
    """

    step: EngineStep
    bucket: int | None
    query_start_loc: Tensor
    seq_lens: Tensor

    @classmethod
    def of(
        cls, step: EngineStep, bucket: int | None, device: torch.device | str = "cpu"
    ) -> "HostBatch":
        """Make the tensors of a step."""
        starts = [0]
        for row in step.rows:
            starts.append(starts[-1] + row.num_tokens)
        lengths = [row.seq_len for row in step.rows]
        return cls(
            step,
            bucket,
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
        )

    def rejected(self, sampled: Sequence[int]) -> Tensor:
        """Return int32 [num_reqs] refused drafts by row; 0 where nothing was verified."""
        refused = [
            row.num_tokens - count if row.is_decode else 0
            for row, count in zip(self.step.rows, sampled, strict=True)
        ]
        return torch.tensor(refused, dtype=torch.int32, device=self.seq_lens.device)

    def first(self, num_rejected: Tensor | None = None) -> DraftBatch:
        """Return the step as the target, and then the drafter's step 0, sees it."""
        return DraftBatch(
            num_reqs=self.step.num_reqs,
            num_tokens=self.step.num_tokens,
            query_start_loc=self.query_start_loc,
            seq_lens=self.seq_lens,
            num_rejected=num_rejected,
            bucket=self.bucket,
        )

    def advanced(self, num_rejected: Tensor, draft_index: int) -> DraftBatch:
        """Return draft step ``draft_index`` as a host that advances by itself describes it."""
        count = self.step.num_reqs
        return DraftBatch(
            num_reqs=count,
            num_tokens=count,
            query_start_loc=torch.arange(count + 1, dtype=torch.int32, device=self.seq_lens.device),
            seq_lens=self.seq_lens - num_rejected[:count] + draft_index,
            bucket=self.bucket,
        )
