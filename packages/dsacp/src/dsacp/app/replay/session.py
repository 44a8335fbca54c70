"""Puts a replay together from its settings, in one process or in several."""

import os
import time
from collections.abc import Sequence

import torch

from dsacp.app.model import ModelConfig
from dsacp.app.model.driver import ModelDriver
from dsacp.app.model.groups import AttentionShape
from dsacp.app.model.inputs import Conversations
from dsacp.app.model.join import join_distributed, join_simulated
from dsacp.app.model.reference import ReferenceModel
from dsacp.app.model.weights import make_weights
from dsacp.app.processes.workers import run_workers
from dsacp.app.replay import distributed
from dsacp.app.replay.acceptance import GeometricAcceptance
from dsacp.app.replay.builders import RankBuilders, Setup, capacity_of, guard_of
from dsacp.app.replay.drivers import Driver, SeededDriver
from dsacp.app.replay.executors import EagerExecutor, GraphExecutor
from dsacp.app.replay.lockstep import Progress, Replay
from dsacp.app.replay.memory import check_memory
from dsacp.app.replay.passes import MetadataOnly, Passes
from dsacp.app.replay.result import ReplayResult
from dsacp.app.replay.settings import ReplayConfig, SettingsError, resolve
from dsacp.app.traces.read import TraceRequest
from dsacp.core import CapacityError, LayoutError


def run_replay(
    config: ReplayConfig, trace: Sequence[TraceRequest], progress: Progress
) -> ReplayResult:
    """Replay a trace as configured.

    Ranks of a metadata-only replay are shared by processes on the CPU; under ``torchrun`` (see
    ``distributed.enter_processes``) every process has one rank and returns what all found.

    Raises:
        DsacpError: settings contradict each other, a guard found a broken invariant, or a process
            was lost.
    """
    if distributed.launched():
        with distributed.names_lost_peers():
            own = run_ranks(config, trace, distributed.own_ranks(), progress)
            return distributed.gather_results(own)
    workers = worker_count(config)
    ranks = tuple(range(config.tp))
    if workers == 1:
        return run_ranks(config, trace, ranks, progress)
    shares = [(config, trace, ranks[index::workers]) for index in range(workers)]
    result, *others = run_workers(run_ranks, shares, progress)
    for other in others:
        result.join(other)
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
    if config.device == "cpu":
        # The model's tensors are small too; more threads would only wait for each other.
        torch.set_num_threads(1)
    with torch.no_grad():
        try:
            replay = prepare(config, trace, ranks)
        except (CapacityError, LayoutError, MemoryError, RuntimeError) as error:
            raise _setting_at_fault(error) from error
        return replay.run(progress)


def _setting_at_fault(error: Exception) -> Exception:
    """Tell settings that buffers or the allocator refuse from defects, which stay as they are."""
    if isinstance(error, CapacityError | LayoutError):
        return SettingsError(str(error))
    memory = ("can't allocate", "not enough memory", "out of memory")
    if isinstance(error, MemoryError) or any(words in str(error) for words in memory):
        first = str(error).partition("\n")[0]
        return SettingsError(f"expected settings that fit the memory, found: {first}: lower them")
    return error


def make_setup(
    config: ReplayConfig, trace: Sequence[TraceRequest]
) -> tuple[Setup, ModelConfig | None]:
    """Check the settings against the trace and derive everything from them.

    Raises:
        DsacpError: settings contradict each other, or do not fit this machine.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f"expected a GPU for --device cuda, found none that torch {torch.__version__} can use: "
            "install a CUDA build of torch, or pass --device cpu"
        )
    limits = resolve(config, trace)
    model = ModelConfig(seed=config.seed) if config.drafter == "mtp" else None
    ranks = 1 if distributed.launched() else config.tp
    check_memory(config, limits, capacity_of(config, limits), model, trace, ranks)
    shape = AttentionShape() if model is None else model.attention
    return Setup.of(config, limits, shape.plan(limits.max_model_len)), model


def prepare(config: ReplayConfig, trace: Sequence[TraceRequest], ranks: Sequence[int]) -> Replay:
    """Allocate both executors of some ranks and capture every bucket."""
    setup, model = make_setup(config, trace)
    eager = [RankBuilders.of(setup, rank) for rank in ranks]
    graph = [RankBuilders.of(setup, rank) for rank in ranks]
    guard = guard_of({"eager": eager, "graph": graph})
    sizes = setup.capacity.capture_sizes
    result = ReplayResult(
        expected_requests=len(trace),
        ranks=tuple(ranks),
        captured=sizes,
        asked=setup.limits.asked_sizes,
    )
    driver: Driver
    passes: tuple[Passes, Passes]
    if model is None:
        driver, passes = _seeded(config)
    else:
        driver, passes = _modelled(setup, model, trace, result)
    begin = time.perf_counter()
    replayed = GraphExecutor.captured(graph, passes[1], sizes, guard)
    result.capture_seconds = time.perf_counter() - begin
    return Replay(setup, trace, EagerExecutor(eager, passes[0]), replayed, guard, driver, result)


def _seeded(config: ReplayConfig) -> tuple[SeededDriver, tuple[Passes, Passes]]:
    acceptance = GeometricAcceptance(config.acceptance, config.draft_tokens, config.seed)
    return SeededDriver(acceptance), (MetadataOnly(), MetadataOnly())


def _modelled(
    setup: Setup, model: ModelConfig, trace: Sequence[TraceRequest], result: ReplayResult
) -> tuple[Driver, tuple[Passes, Passes]]:
    """Two models of the same weights, each with caches of its own."""
    spread = distributed.launched()
    dtype = torch.float64 if setup.device.type == "cpu" else torch.float32
    weights = make_weights(model, dtype, setup.device)
    blocks = {group.name: group.num_blocks for group in setup.scheduler.groups}
    eager, graph = (
        ReferenceModel.allocate(
            model,
            weights,
            setup.capacity,
            blocks,
            len(result.ranks),
            join_distributed if spread else join_simulated,
        )
        for _ in range(2)
    )
    lengths = {index: request.input_length for index, request in enumerate(trace)}
    conversations = Conversations(lengths, model.vocab_size, model.seed)
    driver = ModelDriver(eager, graph, conversations, result)
    return distributed.AgreeingDriver(driver) if spread else driver, (eager, graph)
