"""Ten seeded faults: which way of running a kernel catches each, and that mended ones pass.

The table is exact, so that a fault that is found no more, or now, fails.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("compilers")

SCRIPT = Path(__file__).with_name("seeded_faults.py")
MEMORY, RACE, DIFFERS, PASSES = "MemoryFaultError", "RaceError", "differs", "passes"
COMPILED = {
    "index not clamped": MEMORY,
    "two programs on one word": RACE,
    "int32 overflow in an address": MEMORY,
    "wrong stride": MEMORY,
    "off-by-one grid": MEMORY,
    "uninitialised accumulator": PASSES,  # triton-ascend pads a load without `other` with zeros
    "misaligned vector": PASSES,  # it drops the promise
    "negative shift": DIFFERS,
    "missing tail": DIFFERS,
    "wrong reduction order": PASSES,  # it sums in the order of lanes
}
INTERPRETED = {
    **dict.fromkeys(COMPILED, PASSES),
    "int32 overflow in an address": "crashes",
    "missing tail": DIFFERS,
    "wrong reduction order": DIFFERS,
}


@pytest.mark.parametrize(
    ("how", "expected"),
    [("interpreter", INTERPRETED), ("linalg", COMPILED), ("hivm", COMPILED)],
)
def test_who_catches_what(how: str, expected: dict[str, str]) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": str(int(how == "interpreter"))}
    command = [sys.executable, str(SCRIPT), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = dict(line.split(" | ")[1:3] for line in done.stdout.splitlines())
    assert found == expected
