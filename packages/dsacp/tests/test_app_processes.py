"""Whatever ends one process of a command, all of them end, and each says so in one line at most."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsacp.app.processes.signals import Stopped, ends_on_signals, signals_held
from dsacp.app.processes.workers import WorkerError, run_workers
from dsacp.app.replay.distributed import names_lost_peers
from dsacp.app.traces.read import dump_trace
from dsacp.app.traces.synthetic import synthetic_trace
from dsacp.core import CapacityError

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc")
HANGS = 120
"""Seconds after which a test gives up; none waits that long on any machine."""


@pytest.fixture(autouse=True)
def signals_are_heard():
    """A test run in the background of a script ignores SIGINT, and so would what it starts."""
    deaf = [n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_IGN]
    for number in deaf:
        signal.signal(number, signal.default_int_handler)
    yield
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)


WORK = """
import os, pathlib, signal, time
from dsacp.core import CapacityError

def sleep(folder, name, report):
    pathlib.Path(folder, name + ".part").write_text(str(os.getpid()))
    os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))
    report(1, 2)
    time.sleep(600)

def give(folder, name, report):
    report(len(name), 3)
    return name

def fail(folder, name, report):
    if name == "a":
        sleep(folder, name, report)
    raise CapacityError("no room")

def die(folder, name, report):
    if name == "a":
        sleep(folder, name, report)
    os.kill(os.getpid(), signal.SIGKILL)
"""
RUN = """
import os, sys
import work
from dsacp.app import cli
from dsacp.app.processes.workers import run_workers

def run():
    run_workers(work.sleep, [(sys.argv[1], "a"), (sys.argv[1], "b")], lambda *_: None)

if __name__ == "__main__":
    cli.app = run
    cli.main()
"""
BEGIN = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
ALONE = """
import os, sys, work
from dsacp.app.processes.workers import end_with_parent
end_with_parent()
work.sleep(sys.argv[1], "a", lambda *_: None)
"""
STUCK = """
import ctypes, sys
from dsacp.app.processes.signals import ends_on_signals
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
with ends_on_signals(float(sys.argv[1])):
    libc.pthread_mutex_lock(mutex)
    try:
        print("stuck", flush=True)
        libc.pthread_mutex_lock(mutex)
    except BaseException:  # the signal came before the wait
        libc.pthread_mutex_lock(mutex)
"""
FORK = """
import os, signal
from dsacp.app.processes.signals import ends_on_signals
with ends_on_signals():
    child = os.fork()
    if not child:
        clean = signal.set_wakeup_fd(-1) == -1
        os._exit(clean and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that workers can import, and nothing heavier."""
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import work

    yield work
    del sys.modules["work"]


def begin(*command, **options):
    options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    return subprocess.Popen([sys.executable, *map(str, command)], **options)


def eventually(found):
    deadline = time.monotonic() + HANGS
    while not (value := found()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
    return value


def is_gone(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"  # nobody reaps an orphan here


def pid_of(path):
    return int(eventually(lambda: path.exists() and path.read_text()))


ENDS = [
    ("parent", "SIGTERM", 128 + 15, ["dsacp: ended by SIGTERM before the work was done"]),
    ("parent", "SIGINT", 128 + 2, ["dsacp: ended by SIGINT before the work was done"]),
    ("parent", "SIGHUP", 128 + 1, ["dsacp: ended by SIGHUP before the work was done"]),
    ("group", "SIGINT", 128 + 2, ["dsacp: ended by SIGINT before the work was done"]),
    ("parent", "SIGKILL", -9, ["dsacp: the process that started this one is gone"] * 2),
]


@pytest.mark.parametrize(("role", "name", "code", "lines"), ENDS)
def test_all_processes_end_with_the_parent(tmp_path, work, role, name, code, lines):
    """SIGTERM left a worker running for minutes, SIGINT to the parent alone hung it."""
    (tmp_path / "run.py").write_text(RUN)
    parent = begin(tmp_path / "run.py", tmp_path)
    workers = [pid_of(tmp_path / worker) for worker in "ab"]
    send = os.killpg if role == "group" else os.kill
    send(parent.pid, getattr(signal, name))
    assert parent.wait(HANGS) == code
    for pid in workers:
        eventually(lambda pid=pid: is_gone(pid))
    said = parent.stderr.read().splitlines()  # to its end: no process holds it open any more
    assert len(said) == len(lines)
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=True))


def test_a_replay_ends_with_its_workers_and_leaves_no_file(tmp_path):
    """The real command: an orphan worker went on for as long as the trace lasted."""
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    trace.write_text(dump_trace(synthetic_trace(20_000)))
    command = ["-m", "dsacp.app", "replay", "--drafter=none", "--tp=2", "--workers=2"]
    parent = begin(*command, f"--trace={trace}", f"--json={report}", stdout=subprocess.DEVNULL)
    workers = eventually(lambda: workers_of(parent.pid))
    parent.terminate()
    assert parent.wait(HANGS) == 128 + signal.SIGTERM
    for pid in workers:
        eventually(lambda pid=pid: is_gone(pid))
    assert parent.stderr.read().count("\n") == 1
    assert list(tmp_path.iterdir()) == [trace]


def workers_of(parent):
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [pid for pid, line in lines.items() if b"spawn_main" in line]


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [("die", WorkerError, "ended by SIGKILL: if memory"), ("fail", CapacityError, "^no room$")],
)
def test_a_worker_that_fails_ends_all_at_once(tmp_path, work, job, error, message):
    """A killed worker was noticed only when the parent's own ranks were done."""
    with pytest.raises(error) as raised:
        run_workers(getattr(work, job), [(tmp_path, "a"), (tmp_path, "b")], lambda *_: None)
    assert re.search(message, str(raised.value))
    if job == "fail":
        assert "in fail" in raised.value.__notes__[0], "where it failed in the worker"
    if (tmp_path / "a").exists():
        eventually(lambda: is_gone(pid_of(tmp_path / "a")))


def test_workers_give_their_results_in_order_and_the_first_reports(tmp_path, work):
    reports = []
    shares = [(tmp_path, "one"), (tmp_path, "second")]
    assert run_workers(work.give, shares, lambda *told: reports.append(told)) == ["one", "second"]
    assert reports == [(3, 3)]


def test_a_process_that_another_launcher_started_ends_with_it(tmp_path, work):
    """As under ``torchrun`` that is killed: its ranks went on to the end of the trace."""
    parent = begin("-c", BEGIN, sys.executable, "-c", ALONE, tmp_path)
    child = pid_of(tmp_path / "a")
    parent.kill()
    eventually(lambda: is_gone(child))
    assert parent.stderr.read().count("\n") == 1
    parent.wait(HANGS)


def test_a_wait_that_runs_no_handler_ends_after_the_grace(tmp_path):
    """A rank waits for its peers inside a collective, where Python runs no handler."""
    process = begin("-c", STUCK, 0.01, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.terminate()
    assert process.wait(HANGS) == 128 + signal.SIGTERM
    assert process.stderr.read().startswith("dsacp: ended by SIGTERM")


def test_a_second_signal_is_not_made_to_wait(tmp_path):
    process = begin("-c", STUCK, 600, stdout=subprocess.PIPE)
    process.stdout.readline()

    def again():
        process.send_signal(signal.SIGINT)
        return process.poll()

    assert eventually(again) == 128 + signal.SIGINT


def test_forked_processes_have_signals_of_their_own():
    """Ending an engine core that was forked would have ended the demo that asks it."""
    assert begin("-c", FORK).wait(HANGS) == 0


def test_handlers_are_put_back_and_ignored_signals_stay_so():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped) as stopped:
            stop_held()
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    assert stopped.value.code == 143
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1


def stop_held():
    with ends_on_signals(HANGS, lambda _: None):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with signals_held():
            signal.raise_signal(signal.SIGTERM)
            unharmed = True
        assert not unharmed, "a held signal was lost"


def test_a_lost_peer_is_one_line():
    """The rest of a ``torchrun`` ended with 3 and tracebacks, as if dsacp had a defect."""
    with pytest.raises(WorkerError, match="Connection closed by peer"), names_lost_peers():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534]\nConnection closed by peer")
    with pytest.raises(RuntimeError, match="^other$"), names_lost_peers():
        raise RuntimeError("other")
