"""Drives both executors with the text that the model itself writes, and compares their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.app.model.inputs import Conversations
from dsacp.app.model.reference import ReferenceModel
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.compare import Mismatch, first_difference
from dsacp.app.replay.executors import DraftRun, TargetRun
from dsacp.app.replay.result import ReplayResult
from dsacp.core import LayoutError

LEAST_MARGIN = 1e-9
"""In float64 a sum that is taken in another order moves a logit by less than 1e-12."""


@dataclass
class ModelDriver:
    """Writes each step's tokens to both models; the eager one's tokens decide what follows.

    Attributes:
        eager: the eager executor's model.
        graph: the graph executor's model.
        conversations: the text of every request.
        result: where differences and the smallest margin go.
    """

    eager: ReferenceModel
    graph: ReferenceModel
    conversations: Conversations
    result: ReplayResult
    _sampled: Sequence[Sequence[int]] = ()

    def load(self, batch: HostBatch) -> None:
        """Bring the step's tokens to both models."""
        tokens = self.conversations.tokens(batch.step)
        for model in (self.eager, self.graph):
            model.inputs.write(tokens)

    def verify(
        self, batch: HostBatch, eager: TargetRun, graph: TargetRun
    ) -> tuple[Sequence[int], tuple[Tensor, Tensor]]:
        """Return sampled tokens by row, and refused drafts of each executor, on the device.

        Raises:
            LayoutError: a run came without a model.
        """
        left, right = eager[1], graph[1]
        if left is None or right is None:
            raise LayoutError("expected a target that ran in both executors, found metadata only")
        rows = batch.step.num_reqs
        one, other = left.verified, right.verified
        self._compare(batch, "target tokens", one.tokens[:rows], other.tokens[:rows])
        self._compare(batch, "rejected drafts", one.num_rejected[:rows], other.num_rejected[:rows])
        self._look(batch, "target", left.margins[:rows], right.margins[:rows])
        tokens, counts = one.tokens[:rows].tolist(), one.num_emitted[:rows].tolist()
        self._sampled = [row[:count] for row, count in zip(tokens, counts, strict=True)]
        return counts, (one.num_rejected[:rows], other.num_rejected[:rows])

    def propose(self, batch: HostBatch, eager: DraftRun, graph: DraftRun) -> Sequence[int]:
        """Return drafts by row, and append what was sampled to the text.

        Raises:
            LayoutError: a run came without a model.
        """
        left, right = eager[1], graph[1]
        if left is None or right is None:
            raise LayoutError("expected a drafter that ran in both executors, found metadata only")
        rows = batch.step.num_reqs
        self._compare(batch, "drafts", left.drafts[:rows], right.drafts[:rows])
        self._look(batch, "draft", left.margins[:rows], right.margins[:rows])
        drafts = left.drafts[:rows].tolist()
        self.conversations.extend(batch.step, self._sampled, drafts)
        return [
            len(row) if plan.samples else 0
            for row, plan in zip(drafts, batch.step.rows, strict=True)
        ]

    def _look(self, batch: HostBatch, role: str, left: Tensor, right: Tensor) -> None:
        """Compare margins, which any wrong input of attention changes, and keep the smallest."""
        if left.dtype is not torch.float64:
            return
        bits = left.contiguous().view(torch.int64), right.contiguous().view(torch.int64)
        self._compare(batch, f"{role} margin bits", *bits)
        least = left.min().item()
        if not least > LEAST_MARGIN:
            detail = f"expected a margin above {LEAST_MARGIN}, found {least}"
            self.result.findings.add(Mismatch(batch.step.index, f"{role} margin", detail))
        known = self.result.smallest_margin
        self.result.smallest_margin = least if known is None else min(known, least)

    def _compare(self, batch: HostBatch, place: str, one: Tensor, other: Tensor) -> None:
        if not torch.equal(one, other):
            found = Mismatch(batch.step.index, place, first_difference(one, other))
            self.result.findings.add(found)
