"""Run a test suite's Triton launches as compiled Ascend code, each test in a process of its own.

    TRITON_INTERPRET=0 pytest -p dsacp.ascend_ir.pytest_plugin --ascend-ir=hivm

A `conftest.py` that implements `pytest_ascend_ir_reach` names the memory that kernels reach through
addresses in their tensors; it also asks its own launchers for what they would launch on an NPU,
where that depends on the tensors' device.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch

from dsacp.ascend_ir.execute import Executed, execute, preload
from dsacp.ascend_ir.forked import Answer, run_forked
from dsacp.ascend_ir.launch import Launch
from dsacp.ascend_ir.memory import Reached

OPTION = "--ascend-ir"


class Hooks:
    """What a test suite may tell about its kernels."""

    @staticmethod
    @pytest.hookspec(firstresult=True)
    def pytest_ascend_ir_reach(
        launch: Launch, arguments: Mapping[str, Any]
    ) -> Iterable[Reached] | None:
        """Return what the launch reaches through addresses, or None where it is not known."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ascend-ir", "Triton launches as compiled Ascend code")
    group.addoption(OPTION, choices=("linalg", "hivm"), help="run launches at this level")
    group.addoption(f"{OPTION}-guard", choices=("end", "start"), default="end")
    group.addoption(f"{OPTION}-order", choices=("forward", "reverse", "shuffle"), default="forward")
    group.addoption(f"{OPTION}-seconds", type=float, default=300.0, help="limit of a test")
    group.addoption(f"{OPTION}-jobs", type=int, default=1, help="tests that run at once")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let a `conftest.py` implement the hook."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_configure(config: pytest.Config) -> None:
    """Take over the loop over tests where a level was asked for."""
    if config.getoption(OPTION):
        config.pluginmanager.register(Runner(config), "ascend-ir-runner")


class Runner:
    """Runs every test in a fork under ``execute``, and counts what ran."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._launches: Counter[str] = Counter()
        self._programs: Counter[str] = Counter()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests, some at once, and report them in their order."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if session.config.option.collectonly:
            return True
        option = self._config.getoption
        preload()
        torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports much on its first call
        jobs = [(lambda item=item: self._child(item)) for item in session.items]
        answers = run_forked(jobs, option(f"{OPTION}-jobs"), option(f"{OPTION}-seconds"))
        for item, answer in zip(session.items, answers, strict=True):
            self._report(item, answer)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def _child(self, item: pytest.Item) -> tuple[list[dict[str, Any] | None], list[Executed]]:
        from _pytest.runner import runtestprotocol  # noqa: PLC0415 - no public name for one test

        config, option = self._config, self._config.getoption

        def reach(launch: Launch, arguments: Mapping[str, Any]) -> Iterable[Reached]:
            return config.hook.pytest_ascend_ir_reach(launch=launch, arguments=arguments) or ()

        level, guard, order = (option(f"{OPTION}{end}") for end in ("", "-guard", "-order"))
        with execute(level, guard, order, reach=reach) as execution:
            reports = runtestprotocol(item, log=False, nextitem=None)
        to_data = config.hook.pytest_report_to_serializable
        return [to_data(config=config, report=one) for one in reports], execution.launches

    def _report(self, item: pytest.Item, answer: Answer) -> None:
        config, hook = self._config, item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if answer.error:
            reports = [_failure(item, when, answer.error) for when in ("setup", "call", "teardown")]
        else:
            data, launches = answer.value
            reports = [
                config.hook.pytest_report_from_serializable(config=config, data=one) for one in data
            ]
            self._launches.update(launch.kernel for launch in launches)
            self._programs.update({launch.kernel: 0 for launch in launches})
            for launch in launches:
                self._programs[launch.kernel] += launch.programs
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how many launches ran, so that a suite without any is seen."""
        level = self._config.getoption(OPTION)
        launches, programs = sum(self._launches.values()), sum(self._programs.values())
        terminalreporter.write_line(
            f"ascend-ir {level}: {launches} launches of {len(self._launches)} kernels, "
            f"{programs} programs"
        )
        for kernel, count in sorted(self._launches.items()):
            line = f"  {kernel}: {count} launches, {self._programs[kernel]} programs"
            terminalreporter.write_line(line)


def _failure(item: pytest.Item, when: Any, why: str) -> pytest.TestReport:
    failed = when == "call"
    outcome: Any = "failed" if failed else "passed"
    return pytest.TestReport(
        item.nodeid, item.location, {}, outcome, why if failed else None, when, duration=0.0
    )
