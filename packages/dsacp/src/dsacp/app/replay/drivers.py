"""Where sampled tokens and drafts come from."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dsacp.app.replay.acceptance import GeometricAcceptance
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.executors import DraftRun, TargetRun

Pair = tuple[Tensor, Tensor]
"""One tensor each for the eager and the graph executor."""


class Driver(Protocol):
    """Feeds both executors, and reads from the eager one what the scheduler must know."""

    def load(self, batch: HostBatch) -> None:
        """Bring the step's tokens to both models."""
        ...

    def verify(
        self, batch: HostBatch, eager: TargetRun, graph: TargetRun
    ) -> tuple[Sequence[int], Pair]:
        """Return sampled tokens by row, and int32 refused drafts for each executor."""
        ...

    def propose(self, batch: HostBatch, eager: DraftRun, graph: DraftRun) -> Sequence[int]:
        """Return drafts by row."""
        ...


class SeededDriver:
    """No model: drafts are accepted by a seeded chance."""

    def __init__(self, acceptance: GeometricAcceptance) -> None:
        self._acceptance = acceptance

    def load(self, batch: HostBatch) -> None:
        """Do nothing: no model reads tokens."""

    def verify(
        self,
        batch: HostBatch,
        eager: TargetRun,  # noqa: ARG002
        graph: TargetRun,  # noqa: ARG002
    ) -> tuple[Sequence[int], Pair]:
        """Draw how many drafts are accepted."""
        sampled = self._acceptance.sampled(batch.step)
        rejected = batch.rejected(sampled)
        return sampled, (rejected, rejected)

    def propose(
        self,
        batch: HostBatch,
        eager: DraftRun,  # noqa: ARG002
        graph: DraftRun,  # noqa: ARG002
    ) -> Sequence[int]:
        """Propose K drafts on every row that samples."""
        return self._acceptance.proposed(batch.step)
