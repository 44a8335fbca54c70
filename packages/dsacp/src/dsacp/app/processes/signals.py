"""Signals end a command within seconds: its work unwinds, says one line and exits with 128 + n."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
GRACE_SECONDS = 5.0
"""For the work to unwind; a peer or a device that never answers would hold it for ever."""
UNWOUND = 0
"""Stands for "no more signals will come" among their numbers."""


class Stopped(BaseException):
    """A signal asks this process to end; no ``except Exception`` holds it up.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def code(self) -> int:
        """The exit status that shells give to a process that a signal ended."""
        return 128 + self.number

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        return f"dsacp: ended by {name} before the work was done, no result was written"


@contextlib.contextmanager
def ends_on_signals(
    grace_seconds: float = GRACE_SECONDS, leave: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Turn the first signal of ``ENDING`` into ``Stopped`` while the block runs.

    A thread ends the process if the block does not unwind in time, or at a second signal: Python
    runs no handler while a collective waits for its peers. Signals that are ignored (``nohup``)
    stay so. For the main thread only.

    Args:
        grace_seconds: time to unwind.
        leave: ends the process.
    """
    before = {
        number: handler
        for number in ENDING
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    replaced = [signal.set_wakeup_fd(writing, warn_on_full_buffer=False)]

    def restore() -> None:
        if replaced:
            signal.set_wakeup_fd(replaced.pop())
            os.close(writing)
            for number, handler in before.items():
                signal.signal(number, handler)

    # a signal to a forked child would be told to us
    os.register_at_fork(after_in_child=restore)
    watch = (reading, _own_stderr(), grace_seconds, leave)
    threading.Thread(target=_enforce, args=watch, daemon=True).start()
    stop = _stop_once()
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        restore()


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let handlers of ``ENDING`` run after the block, so that it is done whole or not begun."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    came: list[tuple[int, FrameType | None]] = []
    known = {number: signal.getsignal(number) for number in ENDING}
    before = {number: handler for number, handler in known.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda *told: came.append(told))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            before[number](number, frame)


def _stop_once() -> Callable[[int, FrameType | None], None]:
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)
        if len(came) == 1:  # another one would interrupt the unwinding
            raise Stopped(number)

    return stop


def _own_stderr() -> int:
    """Return a descriptor of standard error that stays what it is when 2 is redirected."""
    try:
        return os.dup(2)
    except OSError:  # there is none
        return os.open(os.devnull, os.O_WRONLY)


def _enforce(
    reading: int, stderr: int, grace_seconds: float, leave: Callable[[int], object]
) -> None:
    """End the process if it is still unwinding ``grace_seconds`` after the first signal."""
    number = _next_signal(reading, None)
    if number and _next_signal(reading, grace_seconds) != UNWOUND:
        stopped = Stopped(number)
        with contextlib.suppress(OSError):
            os.write(stderr, f"{stopped}\n".encode())
        leave(stopped.code)
    os.close(reading)
    os.close(stderr)


def _next_signal(reading: int, seconds: float | None) -> int | None:
    """Return the number of the next signal, ``UNWOUND``, or None when time is over."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([reading], [], [], left)[0]:
            return None
        number = int.from_bytes(os.read(reading, 1), "little")
        if number == UNWOUND or number in ENDING:
            return number
