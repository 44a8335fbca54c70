"""Runs a trace eager and by graph replay in lockstep, and compares everything."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.builders import Setup
from dsacp.app.replay.compare import AddressBook, Mismatch, StepComparer, buffer_bytes
from dsacp.app.replay.drivers import Driver
from dsacp.app.replay.executors import EagerExecutor, GraphExecutor
from dsacp.app.replay.expected import Difference, Expectation
from dsacp.app.replay.measure import measure_cost
from dsacp.app.replay.passes import Steps
from dsacp.app.replay.result import ReplayResult
from dsacp.app.scheduling import EngineStep, Scheduler
from dsacp.app.traces.read import TraceRequest
from dsacp.drafting_cache import GroupSpec
from dsacp.graph import GraphGuard

GUARD_EVERY = 64
"""Steps between two looks at every guard word; one more look follows the last step."""


class Progress(Protocol):
    """Told after each engine step."""

    def __call__(self, finished: int, steps: int) -> None:
        """Take the finished requests and the steps so far."""
        ...


class Replay:
    """One replay of a trace over some ranks.

    Args:
        setup: what all ranks share.
        trace: the requests.
        eager: builds each step.
        graph: replays graphs.
        guard: of all buffers.
        driver: where tokens come from.
        result: where findings and counts go.
    """

    def __init__(
        self,
        setup: Setup,
        trace: Sequence[TraceRequest],
        eager: EagerExecutor,
        graph: GraphExecutor,
        guard: GraphGuard,
        driver: Driver,
        result: ReplayResult,
    ) -> None:
        self.setup = setup
        self.result = result
        self._eager, self._graph, self._guard, self.driver = eager, graph, guard, driver
        self._scheduler = Scheduler(setup.scheduler, trace, setup.tables)
        self._comparer = StepComparer(self.result.findings)
        self._addresses = AddressBook(self.result.findings)
        self._target_truth, self._draft_truth = _expectations(setup)

    def run(
        self, progress: Progress, clock: Callable[[], float] = time.perf_counter
    ) -> ReplayResult:
        """Replay the whole trace.

        Raises:
            DsacpError: a guard found a broken invariant; the message names field and step.
        """
        result, scheduler = self.result, self._scheduler
        begin = clock()
        last: HostBatch | None = None
        while (step := scheduler.next_step()) is not None:
            batch = self._run_step(step)
            last = batch if batch.bucket is not None else last
            if step.index % GUARD_EVERY == 0:
                self._guard.check()
            progress(len(scheduler.finished), step.index + 1)
        self._guard.check()
        result.seconds = clock() - begin
        result.requests, result.refused = len(scheduler.finished), len(scheduler.refused)
        result.output_tokens = scheduler.generated
        for owner, ranks in (("eager", self._eager.ranks), ("graph", self._graph.ranks)):
            for role, size in buffer_bytes(ranks).items():
                result.buffer_bytes[f"{owner} {role}"] += size
        if last is not None:
            result.cost = measure_cost(self._eager, self._graph, last, clock)
        return result

    def _run_step(self, step: EngineStep) -> HostBatch:
        setup = self.setup
        bucket = setup.capacity.bucket(step.num_tokens, step.num_reqs, step.uniform)
        batch = HostBatch.of(step, bucket, setup.device)
        self.driver.load(batch)
        targets = self._eager.target(batch), self._graph.target(batch)
        sampled, rejected = self.driver.verify(batch, *targets)
        drafts = (
            self._eager.draft(batch, rejected[0], targets[0][1]),
            self._graph.draft(batch, rejected[1], targets[1][1]),
        )
        proposed = self.driver.propose(batch, *drafts)
        self._compare(step, "target", targets[0][0], targets[1][0])
        self._compare(step, "draft", drafts[0][0], drafts[1][0])
        self._check_truth(step, sampled, targets[0][0][0], drafts[0][0][0])
        self._count(step, bucket, sampled)
        self._scheduler.finish(step, sampled, proposed)
        return batch

    def _compare(
        self, step: EngineStep, role: str, eager: Sequence[Steps], graph: Sequence[Steps]
    ) -> None:
        for rank, left, right in zip(self.result.ranks, eager, graph, strict=True):
            owner = f"rank {rank} {role}"
            for one, other in zip(left, right, strict=True):
                self._comparer.compare(step.index, owner, one, other)
                self._addresses.look(f"eager {owner}", one)
                self._addresses.look(f"graph {owner}", other)

    def _check_truth(
        self, step: EngineStep, sampled: Sequence[int], target: Steps, draft: Steps
    ) -> None:
        """Compare global fields, equal on every rank, with the schedule itself."""
        pool = self._scheduler.pool
        rejected = [
            row.num_tokens - count if row.is_decode else 0
            for row, count in zip(step.rows, sampled, strict=True)
        ]
        self._report(step, "target", self._target_truth.first(step, pool, target[0]))
        self._report(step, "draft", self._draft_truth.first(step, pool, draft[0]))
        for later in draft[1:]:
            found = self._draft_truth.later(step, rejected, pool, later)
            self._report(step, f"draft step {later.draft_index}", found)

    def _report(self, step: EngineStep, place: str, found: Iterable[Difference]) -> None:
        for path, detail in found:
            self.result.findings.add(Mismatch(step.index, f"{place} {path}", detail))

    def _count(self, step: EngineStep, bucket: int | None, sampled: Sequence[int]) -> None:
        result = self.result
        result.steps += 1
        result.buckets[bucket or 0] += 1
        result.preemptions += len(step.preempted)
        for row, count in zip(step.rows, sampled, strict=True):
            if not row.is_decode:
                result.prompt_tokens += row.num_tokens
            for position in range(1, row.num_drafts + 1):
                result.proposed[position] += 1
                result.accepted[position] += position < count


def _expectations(setup: Setup) -> tuple[Expectation, Expectation]:
    plan, groups = setup.plan, setup.scheduler.groups
    names = [group.name for group in groups]

    def expectation(specs: tuple[GroupSpec, ...]) -> Expectation:
        columns = [names.index(spec.name) for spec in specs]
        return Expectation(specs, columns, setup.limits.max_model_len, setup.config.overflow)

    return expectation(plan.target_groups), expectation(plan.draft_groups)
