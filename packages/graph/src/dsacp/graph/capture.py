"""Capture a function once, replay it on the same addresses."""

import importlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from dsacp.core import AliasError, HostSyncError, LayoutError, StaleAddressError, Uncopied
from dsacp.graph.backends import Backend, GraphApi, make_backend
from dsacp.graph.guard import GraphGuard
from dsacp.graph.guard.walk import tensors_of
from dsacp.graph.hot_path.jit import no_jit_compile
from dsacp.graph.hot_path.launches import count_replay
from dsacp.graph.hot_path.sync import no_host_sync
from dsacp.graph.tape.record import Namer

T = TypeVar("T")
_DRIVER_WORDS = ("capturing", "during capture", "graph capture", "synchronizing", "107030")


class Graph(Uncopied, Generic[T]):
    """A captured function.

    Attributes:
        output: what the function returned; a replay refreshes its tensors in place. Gone after
            ``release``.
        generation: the guard's generation at capture, None without a guard.
    """

    def __init__(self, backend: Backend, output: T, guard: GraphGuard | None) -> None:
        self.output = output
        self.generation = guard.generation() if guard is not None else None
        self._backend: Backend | None = backend
        self._guard = guard

    def replay(self, check: bool = False) -> None:
        """Run the captured work again, without waiting for it.

        Args:
            check: also run ``guard.check()`` afterwards, which waits for the device.

        Raises:
            StaleAddressError: the buffers are of another generation, the graph was released, or
                (on the CPU) a captured tensor is gone.
        """
        backend = self._live()
        now = self._guard.generation() if self._guard is not None else None
        if now != self.generation:
            raise StaleAddressError(
                f"expected buffers of generation {self.generation}, which this graph captured, "
                f"found generation {now}: capture again after release or wake"
            )
        count_replay()
        backend.replay()
        if check and self._guard is not None:
            self._guard.check()

    def check_outside(self, metadata: object) -> None:
        """Raise unless every tensor of ``metadata`` lies outside the graph's own memory (I5).

        Raises:
            AliasError: a buffer was allocated during the capture, where graphs that share the
                pool overwrite it.
        """
        backend = self._live()
        for path, tensor in tensors_of(metadata):
            if backend.owns(tensor):
                raise AliasError(
                    f"expected {path} outside the graph's memory, found it allocated inside the "
                    f"capture at {tensor.data_ptr():#x}: allocate persistent buffers before it"
                )

    def release(self) -> None:
        """Free the graph and drop ``output``, which may lie in its memory.

        A later replay is refused.
        """
        if self._backend is not None:
            self._backend.reset()
            self._backend = None
            del self.output

    def _live(self) -> Backend:
        if self._backend is None:
            raise StaleAddressError("expected a live graph, found a released one: capture again")
        return self._backend


def capture(
    fn: Callable[[], T],
    *,
    device: torch.device | str,
    guard: GraphGuard | None = None,
    warmup: int = 1,
    pool: Any = None,
    api: GraphApi = "auto",
    strict: bool = True,
) -> Graph[T]:
    """Capture ``fn`` as a graph.

    ``fn`` runs ``warmup`` times eagerly, where it may compile and wait, then once under capture,
    where it may not. The CPU executes that run too; a device only records it.

    Only this thread is watched for syncs and compilation. On CUDA torch itself refuses syncs too,
    and those of every thread: its sync debug mode, like a capture, belongs to the process. Other
    threads must not wait for the device meanwhile.

    Args:
        fn: takes nothing and works on persistent buffers.
        device: where the work runs: "cpu", "cuda:0", "npu:0".
        guard: remembers the generation, names buffers, and is checked against graph memory.
        warmup: eager runs before the capture, >= 0.
        pool: device memory pool handle to share with other graphs.
        api: which graph class, see ``make_backend``.
        strict: watch for host syncs and compilation. Turn it off where ``fn`` calls functions that
            ``torch.compile`` made, which fall back to eager code under any dispatch mode.

    Raises:
        HostSyncError: ``fn`` waits for the device, builds tensors of host data or compiles a
            kernel under capture.
        AliasError: a guarded buffer lies in the graph's own memory.
        UnsupportedHostError: torch has no graph for the device.
    """
    if warmup < 0:
        raise LayoutError(f"expected warmup >= 0, found {warmup}")
    name_of = guard.label_of if guard is not None else None
    if str(device).startswith("npu"):
        # torch does not know the device's name before that.
        importlib.import_module("torch_npu")
    backend = make_backend(torch.device(device), api, pool, name_of)
    with torch.no_grad():
        backend.warm_up(fn, warmup)
        output = _record(backend, _watched(fn, name_of) if strict else fn)
    graph = Graph(backend, output, guard)
    if guard is not None:
        graph.check_outside(guard.arenas)
    return graph


def _watched(fn: Callable[[], T], name_of: Namer | None) -> Callable[[], T]:
    def run() -> T:
        with no_host_sync(name_of), no_jit_compile():
            return fn()

    return run


def _record(backend: Backend, fn: Callable[[], T]) -> T:
    try:
        return backend.record(fn)
    except RuntimeError as error:
        backend.reset()
        if any(word in str(error) for word in _DRIVER_WORDS):
            raise HostSyncError(
                f"expected no host sync under capture, found one that only the driver saw: {error}"
            ) from error
        raise
    except BaseException:
        backend.reset()
        raise
