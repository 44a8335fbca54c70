"""First come, first served: which requests compute how many tokens in each engine step."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dsacp.app.scheduling.blocks import BlockPool
from dsacp.app.scheduling.config import SchedulerConfig
from dsacp.app.scheduling.plan import EngineStep, RowPlan
from dsacp.app.scheduling.tables import BatchRows, BlockTables
from dsacp.app.traces.read import TraceRequest
from dsacp.core import LayoutError


@dataclass
class _Live:
    """A request under way: tokens known (prompt and sampled), computed, and drafts to verify."""

    request_id: int
    known: int
    output_limit: int
    computed: int = 0
    produced: int = 0
    drafts: int = 0
    decoding: bool = False


class Scheduler:
    """Turns a trace into engine steps (vLLM V1's rules on a virtual clock).

    Decode requests come first, each with its last sampled token and its drafts, as many as budget
    and ``max_model_len`` leave; then prompt chunks of running requests; then waiting requests in
    order of arrival. When blocks run out the request admitted last gives all of its blocks back
    and starts over from its known tokens (recompute); no request is admitted in such a step.
    Blocks reach K tokens past the batch, for the KV of the draft steps. A prompt that leaves no
    room to generate below ``max_model_len`` is refused.

    Args:
        config: limits.
        trace: requests ordered by arrival.
        tables: block tables to keep in step with the batch.

    Attributes:
        pool: who owns which block.
        refused: requests whose prompt leaves no room to generate.
        finished: requests in the order in which they ended.
        generated: tokens that requests asked for and got.
    """

    def __init__(
        self, config: SchedulerConfig, trace: Sequence[TraceRequest], tables: BlockTables
    ) -> None:
        self.config = config
        self.pool = BlockPool(config.groups)
        self.refused = tuple(
            index
            for index, request in enumerate(trace)
            if request.input_length >= config.max_model_len
        )
        self.finished: list[int] = []
        self.generated = 0
        self._trace = trace
        self._rows = BatchRows(tables)
        self._future = deque(sorted(set(range(len(trace))) - set(self.refused)))
        self._waiting: deque[_Live] = deque()
        self._running: dict[int, _Live] = {}
        self._now = 0.0
        self._steps = 0

    def next_step(self) -> EngineStep | None:
        """Return the next batch, its block tables written; None when every request is done."""
        if not self._running and not self._waiting and self._future:
            self._now = max(self._now, self._trace[self._future[0]].arrival_ms)
        self._arrive()
        chosen, preempted = self._choose_running()
        if not preempted:
            self._choose_waiting(chosen)
        if not chosen:
            return None
        decode = {request: self._running[request].decoding for request in chosen}
        rows = tuple(
            self._plan(self._running[request], chosen[request])
            for request in self._rows.arrange(decode, self.pool)
        )
        query_len = self.config.num_draft_tokens + 1
        uniform = all(row.num_tokens == query_len for row in rows)
        step = EngineStep(self._steps, self._now, rows, uniform, tuple(preempted))
        self._steps += 1
        self._now += self.config.step_ms
        return step

    def finish(self, step: EngineStep, sampled: Sequence[int], drafts: Sequence[int]) -> None:
        """Take in what a step did.

        Args:
            step: the step that ran.
            sampled: by row, accepted drafts plus one; 0 on rows that do not sample.
            drafts: by row, tokens proposed for the next step.

        Raises:
            LayoutError: a count is missing or outside its range; nothing is changed then.
        """
        limit = self.config.num_draft_tokens
        for row, count, proposed in zip(step.rows, sampled, drafts, strict=True):
            low, high = (1, row.num_drafts + 1) if row.samples else (0, 0)
            if not low <= count <= high or not 0 <= proposed <= limit:
                raise LayoutError(
                    f"expected {low}..{high} sampled tokens and 0..{limit} drafts of request "
                    f"{row.request_id}, found {count} and {proposed}"
                )
        for row, count, proposed in zip(step.rows, sampled, drafts, strict=True):
            self._advance(row, count, proposed)

    def _arrive(self) -> None:
        while self._future and self._trace[self._future[0]].arrival_ms <= self._now:
            index = self._future.popleft()
            request = self._trace[index]
            self._waiting.append(_Live(index, request.input_length, request.output_length))

    def _choose_running(self) -> tuple[dict[int, int], list[int]]:
        chosen: dict[int, int] = {}
        preempted: list[int] = []
        order = sorted(self._running.values(), key=lambda live: not live.decoding)
        for live in order:
            if live.request_id not in self._running:
                continue
            tokens = self._wanted(live, chosen)
            if tokens and self._make_room(live, tokens, chosen, preempted):
                chosen[live.request_id] = tokens
        return chosen, preempted

    def _choose_waiting(self, chosen: dict[int, int]) -> None:
        while self._waiting and len(self._running) < self.config.max_num_seqs:
            live = self._waiting[0]
            tokens = self._wanted(live, chosen)
            if not tokens or not self.pool.grow(live.request_id, self._reach(live, tokens)):
                return
            self._running[live.request_id] = self._waiting.popleft()
            chosen[live.request_id] = tokens

    def _wanted(self, live: _Live, chosen: dict[int, int]) -> int:
        left = self.config.max_num_batched_tokens - sum(chosen.values())
        room = self.config.max_model_len - live.computed
        return min(live.known - live.computed + live.drafts, left, room)

    def _reach(self, live: _Live, tokens: int) -> int:
        reach = live.computed + tokens + self.config.num_draft_tokens
        return min(reach, self.config.max_model_len)

    def _make_room(
        self, live: _Live, tokens: int, chosen: dict[int, int], preempted: list[int]
    ) -> bool:
        while not self.pool.grow(live.request_id, self._reach(live, tokens)):
            victim = next(reversed(self._running))
            chosen.pop(victim, None)
            preempted.append(victim)
            self._preempt(victim)
            if victim == live.request_id:
                return False
        return True

    def _preempt(self, request_id: int) -> None:
        live = self._running.pop(request_id)
        self.pool.release(request_id)
        self._rows.forget(request_id)
        live.computed, live.drafts, live.decoding = 0, 0, False
        self._waiting.appendleft(live)

    def _plan(self, live: _Live, tokens: int) -> RowPlan:
        reaches_end = live.computed + tokens >= live.known
        return RowPlan(
            request_id=live.request_id,
            start=live.computed,
            num_tokens=tokens,
            num_drafts=tokens - 1 if live.decoding else 0,
            is_decode=live.decoding,
            samples=reaches_end,
        )

    def _advance(self, row: RowPlan, sampled: int, proposed: int) -> None:
        live = self._running[row.request_id]
        live.computed += sampled if row.is_decode else row.num_tokens
        live.known += sampled
        # A last step may sample past the length that was asked for; nobody gets those tokens.
        self.generated += min(sampled, live.output_limit - live.produced)
        live.produced += sampled
        live.decoding = row.samples
        live.drafts = proposed if row.samples else 0
        if live.produced >= live.output_limit or live.known >= self.config.max_model_len:
            del self._running[row.request_id]
            self.pool.release(row.request_id)
            self.finished.append(row.request_id)
