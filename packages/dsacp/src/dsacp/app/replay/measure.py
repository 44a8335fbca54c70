"""What the metadata of one engine step costs, eager and replayed."""

from collections.abc import Callable
from statistics import median

import torch

from dsacp.app.replay.batches import HostBatch
from dsacp.app.replay.executors import EagerExecutor, GraphExecutor
from dsacp.app.replay.passes import MetadataOnly
from dsacp.app.replay.result import MetadataCost
from dsacp.graph import GraphGuard, LaunchCounter

REPEATS = 9


def measure_cost(
    eager: EagerExecutor, graph: GraphExecutor, batch: HostBatch, clock: Callable[[], float]
) -> MetadataCost:
    """Time one step's metadata on one rank, without a model, on a batch that has a bucket.

    The graph side is captured again without the model, so that only metadata is inside.
    """
    bucket = batch.bucket
    assert bucket is not None
    ranks = eager.ranks[:1]
    alone = EagerExecutor(ranks, MetadataOnly())
    guard = GraphGuard(())
    replayed = GraphExecutor.captured(graph.ranks[:1], MetadataOnly(), [bucket], guard)
    rejected = torch.zeros_like(batch.seq_lens)
    launches, micros = [], []
    for executor in (alone, replayed):

        def work(executor: EagerExecutor | GraphExecutor = executor) -> None:
            executor.target(batch)
            executor.draft(batch, rejected, None)

        work()
        with LaunchCounter() as counter:
            work()
        launches.append(float(counter.count))
        micros.append(_median_us(work, clock, batch.seq_lens.device))
    return MetadataCost(launches[0], launches[1], micros[0], micros[1])


def _median_us(work: Callable[[], None], clock: Callable[[], float], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS):
        begin = clock()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append((clock() - begin) * 1e6)
    return median(times)
