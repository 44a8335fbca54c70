"""The reference model served by one executor alone, eager or by graph replay."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from dsacp.app.model.config import ModelConfig
from dsacp.app.model.inputs import Conversations
from dsacp.app.model.reference import ReferenceModel
from dsacp.app.model.weights import ModelWeights, make_weights
from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.builders import RankBuilders, Setup, guard_of
from dsacp.app.replay.executors import EagerExecutor, Executor, GraphExecutor
from dsacp.app.replay.settings import ReplayConfig, resolve
from dsacp.app.scheduling import EngineStep, Scheduler
from dsacp.app.traces.read import TraceRequest
from dsacp.core import LayoutError
from dsacp.graph import GraphGuard

Mode = Literal["eager", "graph"]


@dataclass
class EngineRun:
    """What a served trace gave.

    Attributes:
        tokens: sampled tokens by request.
        drafts: by request, the K drafts after each sampling step.
        proposed: drafts verified, by draft position from 1.
        accepted: those accepted.
        buckets: steps by captured size; 0 counts steps without one.
        smallest_margin: least distance of a chosen token's logit, or draft's, to the second best.
    """

    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    drafts: dict[int, list[list[int]]] = field(default_factory=dict)
    proposed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    smallest_margin: float = float("inf")


class Engine:
    """Serves a trace with all ranks simulated in one process.

    Args:
        config: the settings; ``drafter`` must be "mtp".
        trace: the requests.
        mode: whether batches that fit a bucket are replayed.
        weights: shared with other engines, or None to draw them from the seed.

    Attributes:
        guard: of every buffer; ``run`` checks it after each step.
    """

    def __init__(
        self,
        config: ReplayConfig,
        trace: Sequence[TraceRequest],
        mode: Mode,
        weights: ModelWeights | None = None,
    ) -> None:
        if config.drafter != "mtp":
            raise LayoutError(f"expected drafter 'mtp', found {config.drafter!r}: it has no model")
        shape = ModelConfig(seed=config.seed)
        limits = resolve(config, trace)
        self.setup = Setup.of(config, limits, shape.attention.plan(limits.max_model_len))
        dtype = torch.float64 if config.device == "cpu" else torch.float32
        blocks = {group.name: group.num_blocks for group in self.setup.scheduler.groups}
        self.model = ReferenceModel.allocate(
            shape,
            make_weights(shape, dtype, config.device) if weights is None else weights,
            self.setup.capacity,
            blocks,
        )
        ranks = [RankBuilders.of(self.setup, rank) for rank in range(config.tp)]
        self.guard: GraphGuard = guard_of({mode: ranks})
        self._executor = self._make_executor(ranks, mode)
        self._scheduler = Scheduler(self.setup.scheduler, trace, self.setup.tables)
        lengths = {index: request.input_length for index, request in enumerate(trace)}
        self._texts = Conversations(lengths, shape.vocab_size, config.seed)

    def run(self) -> EngineRun:
        """Serve the whole trace.

        Raises:
            DsacpError: the guard found a broken invariant.
        """
        run = EngineRun()
        with torch.no_grad():
            while (step := self._scheduler.next_step()) is not None:
                self._step(step, run)
                self.guard.check()
        run.tokens = {request: self._texts.sampled(request) for request in run.drafts}
        return run

    def _make_executor(self, ranks: Sequence[RankBuilders], mode: Mode) -> Executor:
        if mode == "eager":
            return EagerExecutor(ranks, self.model)
        sizes = self.setup.capacity.capture_sizes
        return GraphExecutor.captured(ranks, self.model, sizes, self.guard)

    def _step(self, step: EngineStep, run: EngineRun) -> None:
        bucket = self.setup.capacity.bucket(step.num_tokens, step.num_reqs, step.uniform)
        batch = HostBatch.of(step, bucket, self.setup.device)
        rows = step.num_reqs
        self.model.inputs.write(self._texts.tokens(step))
        _, target = self._executor.target(batch)
        assert target is not None
        verified = target.verified
        _, proposal = self._executor.draft(batch, verified.num_rejected[:rows], target)
        assert proposal is not None
        counts = verified.num_emitted[:rows].tolist()
        tokens = verified.tokens[:rows].tolist()
        drafts = proposal.drafts[:rows].tolist()
        sampled = [row[:count] for row, count in zip(tokens, counts, strict=True)]
        self._texts.extend(step, sampled, drafts)
        self._scheduler.finish(
            step,
            counts,
            [len(row) * plan.samples for row, plan in zip(drafts, step.rows, strict=True)],
        )
        margins = (target.margins[:rows].min(), proposal.margins[:rows].min())
        # A NaN must show, and min() would drop it.
        least = torch.stack((*margins, margins[0].new_tensor(run.smallest_margin))).min()
        run.smallest_margin = least.item()
        run.buckets[bucket or 0] += 1
        _count(step, counts, drafts, run)


def _count(
    step: EngineStep, counts: Sequence[int], drafts: Sequence[list[int]], run: EngineRun
) -> None:
    for row, count, proposed in zip(step.rows, counts, drafts, strict=True):
        kept = run.drafts.setdefault(row.request_id, [])
        if row.samples:
            kept.append(proposed)
        for position in range(1, row.num_drafts + 1):
            run.proposed[position] += 1
            run.accepted[position] += position < count
