"""What is compiled without a device is what devices launch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OFFLINE = Path(__file__).resolve().parents[1] / "offline"
PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from cases import CASES
from launches import folder_of, record
for device in ("cuda", "npu"):
    launches = record(CASES["draft"], device)
    found = [launch for launch in launches if folder_of(launch) == "draft_steps"]
    print(json.dumps([device, [{**item.constants, **item.options} for item in found]]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the module triton is not installed"
)
def test_draft_steps_is_compiled_in_the_tiles_of_each_device() -> None:
    """Only the tiles of NPUs were compiled, for CUDA architectures too: no card launches those.

    In a process of its own: recording replaces Triton's launcher, which the interpreter has not.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROBE, str(OFFLINE)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    keys = ("BLOCK", "ROPE_BLOCK", "num_warps", "VECTOR", "CHUNK")
    tiles = {device: [[item[key] for key in keys] for item in found[device]] for device in found}
    assert tiles["cuda"] == [[8, 4, 1, True, 256], [32, 8, 1, True, 64]]
    assert tiles["npu"] == [[32, 16, 4, False, 256]]


def test_faults_of_ascend_s_linalg_are_found() -> None:
    """Both compiled without a word: num_reqs was garbage, and slots past 2 ** 24 were wrong."""
    spec = importlib.util.spec_from_file_location("linalg", OFFLINE / "linalg.py")
    assert spec is not None
    assert spec.loader is not None
    linalg = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(linalg)
    good = [
        "%s = memref.subview %r[0] [%n] [1] : memref<256xi32> to memref<?xi32>",
        "%s = memref.subview %r[%o] [%n] [1] : memref<256xi32> to memref<?xi32>",
        "%q = arith.divsi %a, %b : i32",
        "%q = arith.divf %a, %b : tensor<32xf32>",
    ]
    bad = [
        "%s = memref.subview %r[%8] [1] [1] : memref<256xi32> to memref<1xi32>",
        "%q = arith.divsi %a#1, %b : tensor<32xi32>",
        "%q = arith.remsi %a, %b : tensor<4x8xi32>",
    ]
    assert list(linalg.faults("\n".join(good))) == []
    assert [fault.split(":")[0] for fault in linalg.faults("\n".join(good + bad))] == [
        "line 5",
        "line 6",
        "line 7",
    ]
