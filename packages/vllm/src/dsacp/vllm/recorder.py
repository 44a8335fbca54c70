"""Writes the requests of a run as a trace that ``dsacp replay --trace`` reads."""

import json
import os
import time
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

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


def install_recorder() -> bool:
    """Record to the file that ``DSACP_TRACE`` names; does nothing without it."""
    target = os.environ.get(TRACE_VARIABLE)
    if not target:
        return False
    from vllm.v1.core.sched.scheduler import Scheduler

    if getattr(Scheduler, "_dsacp_recorder", None) is not None:
        return True
    stock_add, stock_free = Scheduler.add_request, Scheduler._free_request
    state: dict[str, TraceRecorder] = {}

    def recorder() -> TraceRecorder:
        # opened by the process that schedules, not by every process that loads the plug-in
        if "open" not in state:
            stream = Path(target).open("w", encoding="utf-8")  # noqa: SIM115 - lives with the process
            state["open"] = TraceRecorder(stream)
        return state["open"]

    @wraps(stock_add)
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        recorder().arrived(request.request_id)
        return stock_add(self, request, *args, **kwargs)

    @wraps(stock_free)
    def free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        recorder().finished(
            request.request_id, request.num_prompt_tokens, request.num_output_tokens
        )
        return stock_free(self, request, *args, **kwargs)

    Scheduler.add_request = add_request
    Scheduler._free_request = free_request
    Scheduler._dsacp_recorder = recorder
    return True
