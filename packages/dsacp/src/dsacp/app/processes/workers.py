"""Processes that share work: none outlives the others' need of it, however any of them ends.

Imports no torch: a worker watches its parent before it loads what it is to do.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Literal, TypeVar

from dsacp.app.processes.signals import signals_held
from dsacp.core import DsacpError

T = TypeVar("T")
Report = Callable[[int, int], None]
"""Told finished requests and steps."""
Kind = Literal["progress", "result", "error"]

PARENT_SECONDS = 0.5
"""Between two looks at the parent where nothing tells of its end."""
END_SECONDS = 5.0
"""For a worker to end when it is asked to, before it is killed."""
ORPHANED = 1


class WorkerError(DsacpError):
    """A process of a run ended before its work was done."""


def run_workers(
    function: Callable[..., T], shares: Sequence[tuple[Any, ...]], report: Report
) -> list[T]:
    """Run ``function(*share, report)`` in a process for each share; return results in order.

    The first worker's reports are passed on. All workers have ended when this returns or raises.

    Raises:
        WorkerError: a worker ended without a result, which is noticed at once.
        Exception: what a worker raised; the first one to fail ends all.
    """
    workers: list[_Worker] = []
    try:
        for index, share in enumerate(shares):
            with signals_held():  # a worker that is half started complains of it
                workers.append(_Worker.start(function, share, index == 0))
        results = dict(_collect(workers, report))
        return [results[index] for index in range(len(workers))]
    finally:
        for worker in workers:
            worker.end()


def end_with_parent() -> None:
    """End this process soon after the one that started it, however that one ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait: Callable[[], object] = partial(connection.wait, [parent.sentinel])
    else:
        wait = partial(_wait_for_another_parent, os.getppid())
    threading.Thread(target=_end_after, args=(wait,), daemon=True).start()


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    messages: Connection

    @classmethod
    def start(cls, function: Callable[..., object], share: Any, reports: bool) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        messages, theirs = context.Pipe(duplex=False)
        # by reference, and read only when the parent is being watched
        work = pickle.dumps((function, share, reports))
        process = context.Process(target=_work, args=(theirs, work), daemon=True)
        with _interrupts_held():
            process.start()
        theirs.close()  # the worker's end is then the only one, and ends with it
        return cls(process, messages)

    def lost(self) -> WorkerError:
        self.process.join(END_SECONDS)
        code = self.process.exitcode
        how = f"with status {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
        return WorkerError(
            f"expected every process to finish its ranks, found process {self.process.pid} ended "
            f"{how}: if memory ran out, use fewer --workers or smaller limits"
        )

    def end(self) -> None:
        self.process.terminate()
        self.process.join(END_SECONDS)
        self.process.kill()
        self.process.join()
        self.messages.close()


def _collect(workers: Sequence[_Worker], report: Report) -> Iterator[tuple[int, Any]]:
    """Yield index and result of every worker as they come."""
    waiting = {worker.messages: index for index, worker in enumerate(workers)}
    while waiting:
        for ready in connection.wait(list(waiting)):
            assert isinstance(ready, Connection)
            index = waiting[ready]
            try:
                kind, value = ready.recv()
            except (EOFError, OSError):
                raise workers[index].lost() from None
            if kind == "error":
                raise value
            if kind == "progress":
                report(*value)
                continue
            del waiting[ready]
            yield index, value


def _work(messages: Connection, work: bytes) -> None:
    """Do a share in a worker, and send what it gives or raises."""
    end_with_parent()

    def send(kind: Kind, value: object) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more
            messages.send((kind, value))

    try:
        function, share, reports = pickle.loads(work)
        send("result", function(*share, partial(_send_progress, send) if reports else _silent))
    except Exception as error:
        send("error", _sendable(error))


def _send_progress(send: Callable[[Kind, object], None], finished: int, steps: int) -> None:
    send("progress", (finished, steps))


def _silent(finished: int, steps: int) -> None:
    """Report nothing."""
    del finished, steps


def _sendable(error: Exception) -> Exception:
    """Return an error with its traceback as a note, which pickling keeps and a line leaves out."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that no Ctrl-C reaches: a terminal sends it to all, and one is to answer."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # would be started below, and let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for_another_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)


def _end_after(wait: Callable[[], object]) -> None:
    wait()
    with suppress(OSError):
        os.write(2, b"dsacp: the process that started this one is gone, it ends too\n")
    os._exit(ORPHANED)
