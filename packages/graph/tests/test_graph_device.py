"""Device discipline on a pretend NPU: in its own process, since a device name is for life."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = (
    "check_reads_are_refused_before_the_device_waits",
    "check_sync_inside_a_custom_op_is_refused",
    "check_device_only_work_passes",
    "check_capture_binds_the_graph_calls",
    "check_sync_under_capture_is_ours_before_the_drivers",
    "check_driver_errors_become_ours",
    "check_accelerator_graph_is_used_or_refused",
    "check_launches_of_device_ops",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    script = Path(__file__).with_name("npu_checks.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("check", CHECKS)
def test_on_a_pretend_npu(check: str, outcomes: dict[str, str]) -> None:
    """vllm-ascend #8587, #15509: 107030, a synchronous copy while capturing."""
    assert outcomes[check] == "ok", outcomes[check]


def test_every_check_is_listed(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(CHECKS)
