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
_TRACE = "_dsacp_trace"


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


def trace_path(target: str, parallel: Any, number: int = 1) -> Path:
    """Return the file of an engine core; those after a process's first have their own.

    Core 1 of ``trace.jsonl`` writes ``trace.dp1.jsonl``, a process's second engine
    ``trace.2.jsonl``.
    """
    path = Path(target)
    rank = getattr(parallel, "data_parallel_index", None)
    rank = getattr(parallel, "data_parallel_rank", 0) if rank is None else rank
    marks = [f".dp{rank}"] if rank else []
    marks += [f".{number}"] if number > 1 else []
    return path.with_name(f"{path.stem}{''.join(marks)}{path.suffix}")


class SafeRecorder:
    """Records the engines of a process, each to a file of its own, and never ends one.

    An engine's requests wait for no other's: its trace lives on its scheduler.
    """

    def __init__(self, target: str, warn: Callable[[str], None]) -> None:
        self._target = target
        self._warn = warn
        self._engines = 0

    def note(self, scheduler: Any, record: Callable[[TraceRecorder], None]) -> None:
        """Record something; an engine's first failure is logged, and ends its recording."""
        owned = vars(scheduler)
        try:
            if _TRACE not in owned:
                self._engines += 1
                owned[_TRACE] = self._open(scheduler, self._engines)
            if owned[_TRACE] is not None:
                record(owned[_TRACE])
        except Exception as error:  # a full disk, a path that is not there, a changed request
            owned[_TRACE] = None
            self._warn(f"dsacp records no trace to {self._target}, the engine goes on: {error!r}")

    def _open(self, scheduler: Any, number: int) -> TraceRecorder:
        parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
        path = trace_path(self._target, parallel, number)
        return TraceRecorder(path.open("w", encoding="utf-8"))  # lives with the process


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
    """Note every request that a scheduler takes up or frees, before it does."""
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
