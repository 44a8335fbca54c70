"""Ends the processes of an engine with the process that asked for it, however that one ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

_WATCH = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"
"""Waits for its standard input to close, which even SIGKILL of our process does."""


def lead_group(pid: int = 0) -> None:
    """Make a process (0: this one) lead a group, so that what it starts can be ended with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def end_group(leader: int) -> None:
    """End what is left of a group: cores and workers outlive a leader that exits at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def ends_with_us(leader: int) -> Iterator[None]:
    """End the group of ``leader`` when the block ends, or when this process does.

    vLLM's cores and workers notice neither a killed test run nor a leader that exits at once; a
    process outside the group waits for either.
    """
    lead_group(leader)
    command = [sys.executable, "-S", "-c", _WATCH, str(leader)]
    quiet = subprocess.DEVNULL
    try:
        watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except BaseException:
        end_group(leader)
        raise
    assert watcher.stdin is not None, "asked for a pipe"
    try:
        yield
    finally:
        end_group(leader)
        watcher.stdin.close()
        watcher.wait()
