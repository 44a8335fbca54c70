"""A graph for the CPU: ops are recorded once and repeated on the addresses they saw."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
)

from dsacp.core import LayoutError, StaleAddressError, Uncopied
from dsacp.graph.tape.record import Namer, PlainDispatchMode, Recorder
from dsacp.graph.tape.replay import Step, bind_calls


class CpuTape(Uncopied, PlainDispatchMode):
    """Records the ops of a ``with`` block and repeats them as a device graph would.

    The tape owns the storages born inside it and refreshes them in place. Every other tensor is
    foreign: held weakly with the geometry it had, read at its old address, and written only by
    the in-place ops that were recorded. Work that torch does not dispatch (a NumPy write, a Triton
    kernel that is no custom op) is not on the tape.

    Args:
        name_of: names the buffer at an address in messages, or returns None.

    Example:
        >>> source, out = torch.arange(3.0), torch.zeros(3)
        >>> with CpuTape() as tape:
        ...     _ = out.copy_(source * 2)
        >>> _ = source.fill_(5)
        >>> tape.replay()
        >>> out.tolist()
        [10.0, 10.0, 10.0]
    """

    def __init__(self, name_of: Namer | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = Recorder(name_of)
        self._aliases: dict[int, UntypedStorage] = {}
        self._steps: list[Step] | None = None
        self._entered = False

    def __enter__(self) -> "CpuTape":
        if self._entered:
            raise LayoutError("expected a fresh tape, found one already recorded: make a new one")
        self._entered = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run and record one op."""
        return self._recorder.run(func, args, kwargs or {})

    @property
    def num_ops(self) -> int:
        """Ops that a replay repeats; views cost nothing."""
        return len(self._recorder.calls)

    def owns(self, tensor: Tensor) -> bool:
        """Whether the tensor's storage was born on this tape."""
        return tensor.untyped_storage()._cdata in self._recorder.own

    def replay(self) -> None:
        """Repeat every recorded op.

        Raises:
            StaleAddressError: foreign tensors were freed or moved. The replay ran to its end with
                poison (-1, NaN) in their place, as a device would have read garbage.
        """
        if recording():
            raise LayoutError("expected no capture in progress, found one: replay outside of it")
        # A replay is one launch to whoever is watching, and its tensors need no autograd.
        with (
            torch.inference_mode(False),
            torch._C._AutoDispatchBelowADInplaceOrView(),
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
        ):
            stale = self._stale()
            if not stale:
                for step in self._bound():
                    step()
                return
            _run_all(self._standing_in(stale))
        raise StaleAddressError(self._report(stale))

    def release(self) -> None:
        """Forget the calls and give the tape's storages back."""
        self._recorder = Recorder()
        self._aliases.clear()
        self._steps = None

    def _stale(self) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for key, foreign in self._recorder.foreign.items():
            now = foreign.current_address()
            if now != foreign.address:
                found[key] = now
        return found

    def _bound(self) -> list[Step]:
        if self._steps is None:
            foreign = self._recorder.foreign
            self._aliases = {key: item.alias() for key, item in foreign.items()}
            self._steps = bind_calls(self._recorder.calls, self._recorder.own | self._aliases)
        return self._steps

    def _standing_in(self, stale: Iterable[int]) -> list[Step]:
        foreign = self._recorder.foreign
        replaced = {
            key: item.stand_in() if key in stale else item.alias() for key, item in foreign.items()
        }
        return bind_calls(self._recorder.calls, self._recorder.own | replaced)

    def _report(self, stale: dict[int, int | None]) -> str:
        foreign = self._recorder.foreign
        listed = "; ".join(foreign[key].describe(now) for key, now in stale.items())
        return (
            f"expected the {len(foreign)} captured storages at their addresses, found "
            f"{len(stale)} gone: {listed}. Write new values into persistent buffers instead of "
            "passing clones or temporaries, and keep the buffers alive while the graph is"
        )


def _run_all(steps: Iterable[Step]) -> None:
    """Run on poison: an op that rejects it (an index of -1, say) must not end the replay."""
    for step in steps:
        try:
            step()
        except Exception:
            continue


def recording() -> bool:
    """Whether a tape records on this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(isinstance(mode, CpuTape) for mode in _get_current_dispatch_mode_stack())


def is_recording(device: torch.device) -> bool:
    """Tell whether a CPU tape records on this thread, or the device's library captures a stream."""
    ask = getattr(getattr(torch, device.type, None), "is_current_stream_capturing", None)
    return recording() or (ask is not None and bool(ask()))
