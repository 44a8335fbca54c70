"""Compile launches in processes of their own: an assertion of MLIR ends the whole interpreter."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ascend import Hivm, compile_launch

from dsacp.ascend_ir import Launch

Job = tuple[Launch, str]
"""A recorded launch and the architecture that it is compiled for."""

LIMIT_S = 1200


def compile_jobs(jobs: Sequence[Job], workers: int, done: Callable[[Job, Hivm], None]) -> None:
    """Compile every job, ``workers`` at a time, and report each as it ends.

    Launches are recorded before, because torch's threads do not survive a fork.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(jobs)
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_compile, args=(sender, *job))
            process.start()
            sender.close()
            running[receiver] = job, process
        for ready in wait(list(running), LIMIT_S) or list(running):
            assert isinstance(ready, Connection)
            finished, child = running.pop(ready)
            done(finished, _result(ready, child))


def _compile(sender: Connection, launch: Launch, arch: str) -> None:
    sender.send(compile_launch(launch, arch))


def _result(receiver: Connection, process: BaseProcess) -> Hivm:
    try:
        return receiver.recv() if receiver.poll() else Hivm("none", "the compiler hung")
    except EOFError:
        return Hivm("none", "the compiler process died")
    finally:
        process.kill()
        process.join()
        receiver.close()
