"""Fixtures that run a kernel, forced to one implementation, against a plain Python oracle.

importmode=importlib puts no test folder on the path. The helpers' own folder goes there, not this
one, whose ``triton`` would hide the module of that name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent / "support"))

import ascend_launches
from draft_oracle import DraftCase, run_case
from draft_scenarios import BASE, SCENARIOS
from word_checks import run_local, run_rope, run_slots, run_staging, run_tails


@pytest.hookimpl(optionalhook=True)
def pytest_ascend_ir_reach(launch: Any, arguments: Mapping[str, Any]) -> list[Any]:
    """For runs with dsacp-ascend-ir's plug-in."""
    return ascend_launches.reach(launch, arguments)


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Import before the plug-in forks what each of its processes would import."""
    if config.getoption("--ascend-ir", None):
        with ascend_launches.as_npu():
            pass


@pytest.fixture
def is_npu(request: pytest.FixtureRequest) -> bool:
    """Tell whether launches run as compiled for an NPU."""
    return bool(request.config.getoption("--ascend-ir", None))


@pytest.fixture(autouse=True)
def constants_of_the_device(is_npu: bool) -> Iterator[None]:
    with ascend_launches.as_npu() if is_npu else nullcontext():
        yield


@pytest.fixture(params=SCENARIOS.values(), ids=SCENARIOS.keys())
def draft_scenario(request: pytest.FixtureRequest) -> DraftCase:
    case: DraftCase = request.param
    return case


@pytest.fixture(scope="session")
def check_draft() -> Callable[..., None]:
    """Run a case, BASE by default, and compare every word of both storages."""

    def check(impl: str, case: DraftCase = BASE, device: str = "cpu", **changes: Any) -> None:
        run_case(case.with_(**changes), impl, device)

    return check


@pytest.fixture(scope="session")
def check_tails() -> Callable[..., None]:
    return run_tails


@pytest.fixture(scope="session")
def check_staging() -> Callable[..., None]:
    return run_staging


@pytest.fixture(scope="session")
def check_slots() -> Callable[..., None]:
    return run_slots


@pytest.fixture(scope="session")
def check_rope() -> Callable[..., None]:
    return run_rope


@pytest.fixture(scope="session")
def check_local() -> Callable[..., None]:
    return run_local
