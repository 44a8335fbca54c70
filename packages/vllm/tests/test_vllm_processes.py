"""Nothing of an engine outlives the run that started it. Needs no vLLM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsacp.vllm.processes import ends_with_us

CORE = "import pathlib, os, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))"
LEADER = """
import subprocess, sys, time
code = sys.argv[1] + "; time.sleep(600)"
core = subprocess.Popen([sys.executable, "-S", "-c", code, sys.argv[2]])
time.sleep(600 if sys.argv[3] == "stays" else 0)
"""
RUN = """
import pathlib, subprocess, sys, time
from dsacp.vllm.processes import ends_with_us
leader = subprocess.Popen([sys.executable, "-S", "-c", *sys.argv[1:]], process_group=0)
with ends_with_us(leader.pid):
    pathlib.Path(sys.argv[3] + ".watched").write_text("1")
    time.sleep(600)
"""


def read_number(path: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.02)
    pytest.fail("the process did not start")


def is_gone(pid: int) -> bool:
    """Whether a process ended within seconds; a zombie that nobody reaps has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat")
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc")


@pytest.mark.parametrize("leader", ["stays", "exits"])
def test_the_end_of_a_scenario_leaves_no_core_behind(tmp_path, leader) -> None:
    """A leader that exits at once orphans its core, as ``os._exit`` of a scenario does."""
    command = [sys.executable, "-S", "-c", LEADER, CORE, str(tmp_path / "pid"), leader]
    process = subprocess.Popen(command, process_group=0)
    with ends_with_us(process.pid):
        core = read_number(tmp_path / "pid")
        assert Path(f"/proc/{core}").exists()
    assert is_gone(core)
    process.wait(30)


def test_a_scenario_without_a_watcher_is_ended(monkeypatch) -> None:
    """Between start and watch a failure left the engine running."""

    def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(command, process_group=0)
    monkeypatch.setattr(subprocess, "Popen", none_left)
    with pytest.raises(BlockingIOError), ends_with_us(process.pid):
        pytest.fail("nobody watches")
    assert is_gone(process.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_takes_its_cores_along(tmp_path, number) -> None:
    """``timeout`` sends SIGTERM, which ends Python without any ``finally``."""
    command = [sys.executable, "-c", RUN, LEADER, CORE, str(tmp_path / "pid"), "stays"]
    run = subprocess.Popen(command)
    core = read_number(tmp_path / "pid")
    assert read_number(tmp_path / "pid.watched")
    os.kill(run.pid, number)
    run.wait(30)
    assert is_gone(core)
