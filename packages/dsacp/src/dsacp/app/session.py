"""Puts a replay together from its settings, in one process or in several."""

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from dsacp.app.acceptance import GeometricAcceptance
from dsacp.app.builders import RankBuilders, Setup, guard_of
from dsacp.app.drivers import SeededDriver
from dsacp.app.executors import EagerExecutor, GraphExecutor
from dsacp.app.groups import AttentionShape
from dsacp.app.passes import MetadataOnly
from dsacp.app.replay import Progress, Replay
from dsacp.app.result import ReplayResult
from dsacp.app.settings import ReplayConfig, resolve
from dsacp.app.trace import TraceRequest


def run_replay(
    config: ReplayConfig, trace: Sequence[TraceRequest], progress: Progress
) -> ReplayResult:
    """Replay a trace as configured; ranks of a metadata-only replay are shared by processes.

    Raises:
        DsacpError: settings contradict each other, or a guard found a broken invariant.
    """
    workers = worker_count(config)
    shares = [tuple(range(config.tp))[index::workers] for index in range(workers)]
    if workers == 1:
        return run_ranks(config, trace, shares[0], progress)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers - 1, mp_context=context) as pool:
        others = [pool.submit(run_ranks, config, trace, share, _silent) for share in shares[1:]]
        result = run_ranks(config, trace, shares[0], progress)
        for other in others:
            result.join(other.result())
    return result


def worker_count(config: ReplayConfig) -> int:
    """Return the processes that a replay uses: one a core where ranks are independent."""
    if config.drafter != "none" or config.device != "cpu":
        return 1
    return min(config.workers or os.cpu_count() or 1, config.tp)


def run_ranks(
    config: ReplayConfig,
    trace: Sequence[TraceRequest],
    ranks: Sequence[int],
    progress: Progress,
) -> ReplayResult:
    """Replay a trace on some of the ranks in this process."""
    if worker_count(config) > 1:
        torch.set_num_threads(1)
    with torch.inference_mode(False), torch.no_grad():
        replay, seconds = _prepare(config, trace, ranks)
        result = replay.run(progress)
    result.capture_seconds = seconds
    return result


def _prepare(
    config: ReplayConfig, trace: Sequence[TraceRequest], ranks: Sequence[int]
) -> tuple[Replay, float]:
    limits = resolve(config, trace)
    setup = Setup.of(config, limits, AttentionShape().plan(limits.max_model_len))
    eager = [RankBuilders.of(setup, rank) for rank in ranks]
    graph = [RankBuilders.of(setup, rank) for rank in ranks]
    guard = guard_of({"eager": eager, "graph": graph})
    passes = MetadataOnly()
    begin = time.perf_counter()
    sizes = setup.capacity.capture_sizes
    executor = GraphExecutor.captured(graph, passes, sizes, guard)
    seconds = time.perf_counter() - begin
    driver = SeededDriver(GeometricAcceptance(config.acceptance, config.draft_tokens, config.seed))
    replay = Replay(setup, trace, EagerExecutor(eager, passes), executor, guard, driver)
    return replay, seconds


def _silent(finished: int, steps: int) -> None:
    """Report nothing."""
    del finished, steps
