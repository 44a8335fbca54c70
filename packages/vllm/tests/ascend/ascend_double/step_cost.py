"""What one speculative step costs before the draft model runs: launches by part, and host time."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from ascend_double import ops
from ascend_double.host import DEVICE
from ascend_double.launches import DeviceLaunches, device_launches
from ascend_double.proposal import Proposal
from dsacp.kernels.registry import Kernel

WARM = 2
"""Steps before one is counted: the first makes the buffers."""


@dataclass(frozen=True)
class StepCost:
    """Launches of one speculative step on a device, by part.

    Attributes:
        first_build: ``build`` of the drafter's first pass.
        advance: positions, lengths and slots of steps 1..K-1, the proposer's own.
        draft_builds: ``build_for_drafting`` of steps 1..K-1.
        rest: what else ``_propose`` launches.
        by_op: all of them by operator.
    """

    first_build: int
    advance: int
    draft_builds: int
    rest: int
    by_op: dict[str, int]

    @property
    def total(self) -> int:
        """All launches."""
        return self.first_build + self.advance + self.draft_builds + self.rest

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """First build, advance, draft builds and the rest."""
        return self.first_build, self.advance, self.draft_builds, self.rest


def count_launches(proposal: Proposal, stock: Any) -> StepCost:
    """Count the launches of one warm step.

    Args:
        proposal: the step.
        stock: upstream's builder class, whose local metadata counts as on its device.
    """
    for seed in range(WARM):
        proposal.run(proposal.inputs(seed))
    inputs = proposal.inputs(WARM)
    spent: dict[str, int] = {"build": 0, "draft": 0, "advance": 0}
    with device_launches(inputs.common, stock, proposal.mirrors) as counter:
        with proposal.around(_attributing(counter, spent)):
            proposal.run(inputs)
        total, by_op = counter.count, dict(counter.by_name)
    return StepCost(
        first_build=spent["build"],
        advance=spent["advance"],
        draft_builds=spent["draft"],
        rest=total - sum(spent.values()),
        by_op=by_op,
    )


def _attributing(counter: DeviceLaunches, spent: dict[str, int]) -> Callable[..., Any]:
    """Return a wrapper that credits launches to the innermost part: an advance ends in a build."""

    def wrap(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            before = counter.count - sum(spent.values())
            result = call(*args, **kwargs)
            spent[part] += counter.count - sum(spent.values()) - before
            return result

        return counted

    return wrap


@dataclass(frozen=True)
class HostTime:
    """Time of this thread on the host for one step, in microseconds; kernels do nothing.

    Attributes:
        median: of all steps.
        least: of the quickest.
    """

    median: float
    least: float


def measure_host(proposal: Proposal, stock: Any, steps: int = 200) -> HostTime:
    """Measure steps whose kernels have no bodies, so that what is left is the host's share.

    On a device the aten operators that remain only launch; here they also compute, on a few
    hundred words. So the figures compare two builders on one machine and say nothing of a device.
    """
    inputs = proposal.inputs(0)
    taken = []
    with without_bodies(stock):
        for number in range(steps + steps // 10):
            start = time.thread_time_ns()
            proposal.run(inputs)
            if number >= steps // 10:
                taken.append((time.thread_time_ns() - start) / 1000)
    return HostTime(statistics.median(taken), min(taken))


@contextmanager
def without_bodies(stock: Any) -> Iterator[None]:
    """Let operators of ours, of upstream's plan and of its local metadata return at once."""
    words = torch.zeros(1024, dtype=torch.int32, device=DEVICE)

    # functions, not mocks: a mock's own time would be measured
    def plan(*_args: Any, **_given: Any) -> torch.Tensor:
        return words

    def nothing(*_args: Any, **_given: Any) -> None:
        return None

    def select(*_args: Any, **_given: Any) -> Callable[..., None]:
        return nothing

    with ExitStack() as stack:
        for name in ops.NAMES[:2]:
            stack.enter_context(mock.patch.object(torch.ops._C_ascend, name, plan))
        local = _without_kernel(stock._build_local_token_metadata)
        stack.enter_context(mock.patch.object(stock, "_build_local_token_metadata", local))
        stack.enter_context(mock.patch.object(Kernel, "select", select))
        yield


def _without_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return upstream's local metadata as its device path runs it on the host: two fills."""

    def local(self: Any, *args: Any, **given: Any) -> Any:
        starts, lengths = given.get("local_query_start_loc"), given.get("local_seq_lens")
        if starts is None:
            return original(self, *args, **given)
        ranks = self.vllm_config.parallel_config.tensor_parallel_size
        per_rank = -(-given["num_input_tokens"] // ranks)
        starts.fill_(0)
        lengths.fill_(0)
        rows = given["num_reqs"]
        shape = (0, per_rank, per_rank, per_rank * ranks)
        return *shape, starts[: rows + 1], lengths[:rows]

    return local
