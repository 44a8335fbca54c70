"""Two ways to run a step: build its metadata piece by piece, or replay captured graphs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsacp.app.model.drafter import Proposal
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.builders import RankBuilders
from dsacp.app.replay.passes import Passes, Steps, TargetResult
from dsacp.app.scheduling import EngineStep, RowPlan
from dsacp.graph import Graph, GraphGuard, capture

TargetRun = tuple[tuple[Steps, ...], TargetResult | None]
DraftRun = tuple[tuple[Steps, ...], Proposal | None]


class Executor(Protocol):
    """Runs the target and then the drafter of one engine step on every rank."""

    @property
    def ranks(self) -> Sequence[RankBuilders]:
        """The builders of every rank."""
        ...

    def target(self, batch: HostBatch) -> TargetRun:
        """Return, by rank, the target's one step, and what the model gave."""
        ...

    def draft(
        self, batch: HostBatch, num_rejected: Tensor, target: TargetResult | None
    ) -> DraftRun:
        """Return, by rank, draft steps 0..K-1, and what the model gave."""
        ...


@dataclass(frozen=True)
class EagerExecutor:
    """Builds each step by itself, from batches that the host advances (vllm-ascend's rhythm)."""

    ranks: Sequence[RankBuilders]
    passes: Passes

    def target(self, batch: HostBatch) -> TargetRun:
        """Build the target's step on every rank, then run it."""
        first = batch.first()
        steps = tuple((rank.target.build(first),) for rank in self.ranks)
        return steps, self.passes.target(steps)

    def draft(
        self, batch: HostBatch, num_rejected: Tensor, target: TargetResult | None
    ) -> DraftRun:
        """Build step 0 and then each later step on every rank, then run them."""
        first = batch.first(num_rejected)
        count = self.ranks[0].draft.config.num_steps
        later = [batch.advanced(num_rejected, index) for index in range(1, count)]
        steps = tuple(
            (
                rank.draft.build(first),
                *(
                    rank.draft.build_for_drafting(advanced, index)
                    for index, advanced in enumerate(later, start=1)
                ),
            )
            for rank in self.ranks
        )
        return steps, self.passes.draft(steps, target)


@dataclass(frozen=True)
class GraphExecutor:
    """Stages a batch and replays the graphs of its bucket; without one it builds all at once.

    Attributes:
        ranks: the builders.
        passes: what runs on the metadata.
        targets: a captured refresh and pass of the target, by bucket.
        drafts: likewise of the drafter, all draft steps in one graph.
    """

    ranks: Sequence[RankBuilders]
    passes: Passes
    targets: Mapping[int, Graph[TargetRun]]
    drafts: Mapping[int, Graph[DraftRun]]

    @classmethod
    def captured(
        cls,
        ranks: Sequence[RankBuilders],
        passes: Passes,
        sizes: Sequence[int],
        guard: GraphGuard,
        warm: Callable[[int], None] = lambda _: None,
    ) -> "GraphExecutor":
        """Capture every size, the largest first as serving engines do.

        Args:
            ranks: the builders.
            passes: what runs on the metadata.
            sizes: buckets, in step-0 tokens.
            guard: of all builders.
            warm: fills the model's inputs for a capture of that size.
        """
        targets: dict[int, Graph[TargetRun]] = {}
        drafts: dict[int, Graph[DraftRun]] = {}
        for builder in (b for rank in ranks for b in (rank.target, rank.draft)):
            if builder.config.device.type != "cpu":
                builder.warmup()
        for size in sorted(sizes, reverse=True):
            _stage_warm_up(ranks, size)
            warm(size)
            targets[size] = _capture_target(ranks, passes, size, guard)
            result = targets[size].output[1]
            drafts[size] = _capture_draft(ranks, passes, size, guard, result)
            guard.watch(targets[size].output[0], f"target{size}")
            guard.watch(drafts[size].output[0], f"draft{size}")
        return cls(ranks, passes, targets, drafts)

    def target(self, batch: HostBatch) -> TargetRun:
        """Stage and replay, or build and run, the target's step on every rank."""
        first = batch.first()
        if batch.bucket is None:
            steps = tuple(rank.target.build_all(first) for rank in self.ranks)
            return steps, self.passes.target(steps)
        for rank in self.ranks:
            rank.target.stage(first)
        graph = self.targets[batch.bucket]
        graph.replay()
        return graph.output

    def draft(
        self, batch: HostBatch, num_rejected: Tensor, target: TargetResult | None
    ) -> DraftRun:
        """Stage and replay, or build and run, all draft steps on every rank."""
        first = batch.first(num_rejected)
        if batch.bucket is None:
            steps = tuple(rank.draft.build_all(first) for rank in self.ranks)
            return steps, self.passes.draft(steps, target)
        for rank in self.ranks:
            rank.draft.stage(first)
        graph = self.drafts[batch.bucket]
        graph.replay()
        return graph.output


def warm_up_batch(
    num_reqs: int, query_len: int, bucket: int | None, device: torch.device | str = "cpu"
) -> HostBatch:
    """Return requests that have just begun; their block-table rows point at the null block."""
    row = RowPlan(-1, 0, query_len, query_len - 1, is_decode=True, samples=True)
    return HostBatch.of(EngineStep(-1, 0.0, (row,) * num_reqs, True, ()), bucket, device)


def _stage_warm_up(ranks: Sequence[RankBuilders], size: int) -> None:
    query_len = ranks[0].draft.config.capacity.num_draft_tokens + 1
    batch = warm_up_batch(size // query_len, query_len, size).first()
    for rank in ranks:
        rank.target.stage(batch)
        rank.draft.stage(batch)


def _capture_target(
    ranks: Sequence[RankBuilders], passes: Passes, size: int, guard: GraphGuard
) -> Graph[TargetRun]:
    def run() -> TargetRun:
        steps = tuple(rank.target.refresh(size) for rank in ranks)
        return steps, passes.target(steps)

    return capture(run, device=ranks[0].target.config.device, guard=guard)


def _capture_draft(
    ranks: Sequence[RankBuilders],
    passes: Passes,
    size: int,
    guard: GraphGuard,
    target: TargetResult | None,
) -> Graph[DraftRun]:
    def run() -> DraftRun:
        steps = tuple(rank.draft.refresh(size) for rank in ranks)
        return steps, passes.draft(steps, target)

    return capture(run, device=ranks[0].draft.config.device, guard=guard)
