"""Writes the requests of a run as a trace that ``dsacp replay --trace`` reads."""

import json
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

from dsacp.core import UnsupportedHostError, write_whole
from dsacp.vllm.hooks import Hook, check_hooks

TRACE_VARIABLE = "DSACP_TRACE"


class TraceRecorder:
    """One JSON line a finished request: timestamp in ms since the first, and both lengths.

    Lines are written in the order of arrival, so a request waits for those before it.
    """

    def __init__(self, stream: TextIO, clock: Any = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start: float | None = None
        self._waiting: dict[str, dict[str, int] | None] = {}
        self._arrived: dict[str, int] = {}

    def arrived(self, request_id: str) -> None:
        """Note a request's arrival at the scheduler."""
        now = self._clock()
        self._start = now if self._start is None else self._start
        self._arrived[request_id] = round((now - self._start) * 1000)
        self._waiting[request_id] = None

    def finished(self, request_id: str, input_length: int, output_length: int) -> None:
        """Write the request, and those behind it that waited; unknown requests are ignored."""
        if request_id not in self._arrived:
            return
        self._waiting[request_id] = {
            "timestamp": self._arrived.pop(request_id),
            "input_length": input_length,
            "output_length": output_length,
        }
        for name in list(self._waiting):
            line = self._waiting[name]
            if line is None:
                break
            if line["output_length"] > 0:
                self._stream.write(json.dumps(line) + "\n")
            del self._waiting[name]
        self._stream.flush()


def trace_path(target: str, parallel: Any) -> Path:
    """Return the file of this engine core; data-parallel cores after the first have their own.

    Core 1 of ``trace.jsonl`` writes ``trace.dp1.jsonl``.
    """
    path = Path(target)
    rank = getattr(parallel, "data_parallel_index", None)
    rank = getattr(parallel, "data_parallel_rank", 0) if rank is None else rank
    return path.with_name(f"{path.stem}.dp{rank}{path.suffix}") if rank else path


class SafeRecorder:
    """A recorder that the process opens at its first request, and that never ends an engine."""

    def __init__(self, target: str, warn: Callable[[str], None]) -> None:
        self._target = target
        self._warn = warn
        self._open: TraceRecorder | None = None
        self._failed = False

    def note(self, scheduler: Any, record: Callable[[TraceRecorder], None]) -> None:
        """Record something; the first failure is logged, and ends the recording."""
        if self._failed:
            return
        try:
            if self._open is None:
                path = trace_path(self._target, _parallel_config(scheduler))
                stream = path.open("w", encoding="utf-8")  # lives with the process
                self._open = TraceRecorder(stream)
            record(self._open)
        except Exception as error:  # a full disk, a path that is not there, a changed request
            self._failed = True
            self._warn(f"dsacp records no trace to {self._target}, the engine goes on: {error!r}")


def keep_trace(part: Path, target: Path) -> None:
    """Bring a finished recording to the file that was asked for, whole.

    Raises:
        UnsupportedHostError: the engine recorded nothing.
        OSError: the file cannot be written after all.
    """
    text = part.read_text(encoding="utf-8") if part.exists() else ""
    if not text:
        raise UnsupportedHostError(
            f"expected a trace for {target}, found no request recorded: see the engine's log"
        )
    write_whole(target, text)


def _parallel_config(scheduler: Any) -> Any:
    return getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)


def install_recorder(warn: Callable[[str], None]) -> bool:
    """Record to the file that ``DSACP_TRACE`` names; does nothing without it.

    Raises:
        RuntimeError: the scheduler lacks what we wrap; it is left as it is.
    """
    target = os.environ.get(TRACE_VARIABLE)
    if not target:
        return False
    from vllm.v1.core.sched.scheduler import Scheduler

    names = ("add_request", "_free_request")
    hooks = [
        Hook(f"Scheduler {name}", vars(Scheduler).get(name), (), ("self", "request"))
        for name in names
    ]
    if lost := list(check_hooks(hooks)):
        raise RuntimeError("; ".join(map(str, lost)))
    if getattr(Scheduler, "_dsacp_recorder", None) is None:
        Scheduler._dsacp_recorder = SafeRecorder(target, warn)
        wrap_scheduler(Scheduler, Scheduler._dsacp_recorder)
    return True


def wrap_scheduler(scheduler_cls: Any, recorder: SafeRecorder) -> None:
    """Note every request that the scheduler takes up or frees, before it does."""
    stock_add, stock_free = scheduler_cls.add_request, scheduler_cls._free_request

    @wraps(stock_add)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.note(self, lambda trace: trace.arrived(request.request_id))
        return stock_add(self, request, *args, **kwargs)

    @wraps(stock_free)
    def free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.note(
            self,
            lambda trace: trace.finished(
                request.request_id, request.num_prompt_tokens, request.num_output_tokens
            ),
        )
        return stock_free(self, request, *args, **kwargs)

    scheduler_cls.add_request = add_request
    scheduler_cls._free_request = free_request
