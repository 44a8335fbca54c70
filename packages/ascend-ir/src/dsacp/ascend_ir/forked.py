"""Calls in processes of their own: compiled code, and a compiler's assertion, may end one."""

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_SIGNS = {
    "SIGSEGV": "an access that nothing looks up does this",
    "SIGKILL": "want of memory does this",
    "SIGABRT": "an assertion of a compiler does this",
}


@dataclass(frozen=True)
class Answer:
    """What a call returned, or why it did not.

    Attributes:
        value: what it returned.
        error: empty, or how it ended.
    """

    value: Any = None
    error: str = ""


@dataclass
class _Child:
    pid: int
    reader: int
    deadline: float
    data: bytes = b""


def run_forked(
    calls: Sequence[Callable[[], Any]], workers: int, seconds: float
) -> Iterator[Answer]:
    """Yield the answer of every call in their order; ``workers`` run at once.

    Args:
        calls: functions without arguments, whose results can be pickled.
        workers: processes at a time.
        seconds: limit of one call.
    """
    running: dict[int, _Child] = {}
    done: dict[int, Answer] = {}
    started = 0
    try:
        for index in range(len(calls)):
            while index not in done:
                while started < len(calls) and len(running) < workers:
                    running[started] = _start(calls[started], seconds)
                    started += 1
                done |= _collect(running)
            yield done.pop(index)
    finally:
        for child in running.values():
            _stop(child)


def _start(call: Callable[[], Any], seconds: float) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        status = 1
        try:
            data = pickle.dumps(Answer(call()))
            status = 0
        except BaseException:
            data = pickle.dumps(Answer(error=traceback.format_exc()))
            status = 0
        finally:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(data)
            os._exit(status)  # nothing of the parent is to be torn down here
    os.close(writer)
    return _Child(pid, reader, time.monotonic() + seconds)


def _collect(running: dict[int, _Child]) -> dict[int, Answer]:
    """Wait for something to happen, and return what ended, which ``running`` then lacks."""
    left = min(child.deadline for child in running.values()) - time.monotonic()
    readers = [child.reader for child in running.values()]
    ready, _, _ = select.select(readers, [], [], max(left, 0))
    ended = {}
    for index, child in list(running.items()):
        if child.reader in ready:
            part = os.read(child.reader, 1 << 20)
            child.data += part
            if part:
                continue
            ended[index] = _end(child)
        elif time.monotonic() >= child.deadline:
            _stop(child)
            ended[index] = Answer(error="it did not end within its time")
        else:
            continue
        del running[index]
    return ended


def _end(child: _Child) -> Answer:
    os.close(child.reader)
    status = os.waitpid(child.pid, 0)[1]
    if status == 0 and child.data:
        answer: Answer = pickle.loads(child.data)
        return answer
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Answer(error=f"it was ended by {name}: {_SIGNS.get(name, 'see above')}")
    return Answer(error=f"its process ended with {os.waitstatus_to_exitcode(status)}")


def _stop(child: _Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    os.close(child.reader)
