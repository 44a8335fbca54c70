"""Graphs of one device behind four methods: record, replay, owns, reset."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from dsacp.core import Uncopied, UnsupportedHostError
from dsacp.graph.tape import CpuTape
from dsacp.graph.tape.record import Namer

T = TypeVar("T")
GraphApi = Literal["auto", "device", "accelerator"]


class Backend(Protocol):
    """What ``capture`` needs of a device."""

    def warm_up(self, fn: Callable[[], object], times: int) -> None:
        """Run ``fn`` eagerly where the capture will run, so that kernels are compiled."""

    def record(self, fn: Callable[[], T]) -> T:
        """Capture ``fn`` and return what it returned."""

    def replay(self) -> None:
        """Launch the captured work on the current stream."""

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor lives in the graph's own memory."""

    def reset(self) -> None:
        """Free the graph."""


class CpuBackend(Uncopied):
    """The CPU tape as a backend."""

    def __init__(self, name_of: Namer | None = None) -> None:
        self._tape = CpuTape(name_of)

    def warm_up(self, fn: Callable[[], object], times: int) -> None:
        """Run ``fn`` as it is."""
        for _ in range(times):
            fn()

    def record(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` once on the tape."""
        with self._tape:
            return fn()

    def replay(self) -> None:
        """Repeat the tape."""
        self._tape.replay()

    def owns(self, tensor: Tensor) -> bool:
        """Whether the storage was born on the tape."""
        return self._tape.owns(tensor)

    def reset(self) -> None:
        """Forget the tape."""
        self._tape.release()


class StreamBackend(Uncopied):
    """CUDA, ACL and any other device whose graphs capture a stream.

    Args:
        device: an accelerator device with an index.
        graph: has ``capture_begin``, ``capture_end``, ``replay``, ``reset`` and ``pool``.
        pool: memory pool handle shared with other graphs, or None.
        module: ``torch.cuda`` or ``torch.npu``.
    """

    def __init__(self, device: torch.device, graph: Any, pool: Any, module: Any) -> None:
        self._device = device
        self._graph = graph
        self._pool = pool
        self._module = module
        self._stream = module.Stream(device=device)
        self._segments: list[tuple[int, int]] | None = None

    def warm_up(self, fn: Callable[[], object], times: int) -> None:
        """Run ``fn`` on the capture stream, which allocators and autotuners key by."""
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream):
            for _ in range(times):
                fn()
        self._module.current_stream(self._device).wait_stream(self._stream)
        self._module.synchronize(self._device)

    def record(self, fn: Callable[[], T]) -> T:
        """Capture ``fn``; an error inside it ends the capture and is raised as it is."""
        self._module.synchronize(self._device)
        with self._module.stream(self._stream):
            if self._pool is None:
                self._graph.capture_begin()
            else:
                self._graph.capture_begin(pool=self._pool)
            try:
                with _sync_errors(self._module):
                    result = fn()
            except BaseException:
                # The driver has already ended a broken capture and says so.
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        return result

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()

    def owns(self, tensor: Tensor) -> bool:
        """Whether the allocator's snapshot has the address in the graph's memory pool."""
        if self._segments is None:
            pool = tuple(self._graph.pool())
            self._segments = [
                (segment["address"], segment["address"] + segment["total_size"])
                for segment in self._module.memory_snapshot()
                if tuple(segment.get("segment_pool_id", ())) == pool
            ]
        address = tensor.data_ptr()
        return any(start <= address < end for start, end in self._segments)

    def reset(self) -> None:
        """Free the graph and its memory."""
        self._graph.reset()


@contextmanager
def _sync_errors(module: Any) -> Iterator[None]:
    """Let torch itself refuse what no mode sees: a sync inside its C++ code."""
    if not hasattr(module, "set_sync_debug_mode"):
        yield
        return
    before = module.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch says on first use that it does not see every sync; the driver sees the rest.
        warnings.simplefilter("ignore")
        module.set_sync_debug_mode("error")
    try:
        yield
    finally:
        module.set_sync_debug_mode(before)


def make_backend(
    device: torch.device, api: GraphApi = "auto", pool: Any = None, name_of: Namer | None = None
) -> Backend:
    """Choose a backend by device type.

    Args:
        device: where the captured work runs.
        api: "device" for the device's own graph class, "accelerator" for ``torch.accelerator``'s
            (torch >= 2.12), "auto" for the first that there is.
        pool: memory pool handle for device graphs.
        name_of: names buffers in the CPU tape's messages.

    Raises:
        UnsupportedHostError: torch has no such graph for the device.
    """
    if device.type == "cpu":
        if api == "accelerator":
            raise UnsupportedHostError(
                "expected an accelerator for torch.accelerator.Graph, found the CPU: use api='auto'"
            )
        return CpuBackend(name_of)
    module = getattr(torch, device.type, None)
    own = getattr(module, {"cuda": "CUDAGraph", "npu": "NPUGraph"}.get(device.type, "Graph"), None)
    shared = getattr(torch.accelerator, "Graph", None)
    if api != "accelerator" and own is not None:
        return StreamBackend(device, own(), pool, module)
    if api != "device" and shared is not None and module is not None:
        graph = shared(pool=pool) if pool is not None else shared()
        return StreamBackend(device, graph, None, module)
    raise UnsupportedHostError(
        f"expected a graph class for {device} with api={api!r}, found none in torch "
        f"{torch.__version__}: torch.accelerator.Graph needs torch 2.12 or later"
    )
