"""Device and host times, measured the same way by every benchmark here."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch


def graph_us(calls: Sequence[Callable[[], object]], copies: int = 64, replays: int = 30) -> float:
    """Return the median device time of one call, in microseconds.

    ``copies`` calls, rotating over ``calls`` (one set of buffers each), are captured in one CUDA
    graph, so that launch gaps vanish; replays are timed with events.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(copies):
            calls[index % len(calls)]()
    graph.replay()
    samples = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / copies)
    return statistics.median(samples)


def host_us(call: Callable[[], object], repeats: int = 300) -> float:
    """Return the median host time of one call while the device keeps up, in microseconds."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    samples = []
    for index in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(1e6 * (time.perf_counter() - start))
        if index % 20 == 19:
            torch.cuda.synchronize()
    return statistics.median(samples)


def card() -> str:
    """Name the card and the versions that a figure belongs to."""
    import triton  # noqa: PLC0415 - only where a GPU is

    name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}"
