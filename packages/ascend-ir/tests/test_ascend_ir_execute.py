"""Launches under ``execute``, and a test suite under the plug-in."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsacp.ascend_ir import (
    CompileError,
    LaunchError,
    MemoryFaultError,
    NotExecutedError,
    RaceError,
    UninitialisedError,
    execute,
)

pytestmark = pytest.mark.usefixtures("compilers")

LEVELS = ["linalg", "hivm"]


@pytest.fixture
def kernels(compilers, monkeypatch: pytest.MonkeyPatch):
    import ir_kernels
    import triton

    if not isinstance(ir_kernels.add_one, triton.JITFunction):
        pytest.skip("these kernels are interpreted: unset TRITON_INTERPRET")
    return ir_kernels


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("guard", ["end", "start", None])
def test_a_kernel_computes_what_it_means(kernels, level, guard) -> None:
    x, out = torch.arange(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)
    with execute(level, guard) as execution:
        kernels.add_one[(2,)](x, out, 100, BLOCK=64)
    assert torch.equal(out, x + 1)
    (launch,) = execution.launches
    assert (launch.kernel, launch.grid, launch.programs) == ("add_one", (2, 1, 1), 2)
    assert launch.local_bytes > 0
    assert launch.rewrites


def test_a_first_launch_may_look_nothing_up(compilers) -> None:
    """The runner's memory was made by the first launch between closed pages only."""
    code = (
        "import torch, ir_kernels; from dsacp.ascend_ir import execute\n"
        "out = torch.zeros(1, dtype=torch.int32)\n"
        "with execute(guard=None): ir_kernels.last_program_wins[(3,)](out)\n"
        "assert out == 2"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_knows_its_place(kernels, level) -> None:
    out = torch.full((24,), -1, dtype=torch.int32)
    with execute(level):
        kernels.program_ids[(2, 3, 4)](out, 2, 3)
    expected = [x + 10 * y + 100 * z for z in range(4) for y in range(3) for x in range(2)]
    assert out.tolist() == expected


@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_names_kernel_program_argument_bytes_and_line(kernels, level) -> None:
    x, out = torch.arange(100, dtype=torch.int32), torch.zeros(90, dtype=torch.int32)
    source = Path(kernels.__file__)
    line = 1 + next(
        index
        for index, text in enumerate(source.read_text().splitlines())
        if "value + 1, mask" in text
    )
    with execute(level) as execution, pytest.raises(MemoryFaultError) as caught:
        kernels.add_one[(2,)](x, out, 100, BLOCK=64)
    (fault,) = caught.value.faults
    assert (fault.kernel, fault.kind, fault.argument, fault.side) == (
        "add_one",
        "store",
        "out",
        "after",
    )
    assert (fault.nearest, fault.farthest, fault.count) == (4, 40, 10)
    assert fault.programs == ((1, 0, 0),)
    assert fault.line == f"{source}:{line}"
    assert not out.any()
    assert execution.launches == []


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_an_order_shows_in_a_kernel_that_depends_on_it(kernels, order) -> None:
    """Without the look-up, which tells of it in every order."""
    out = torch.full((1,), -1, dtype=torch.int32)
    with execute(guard=None, order=order):
        kernels.last_program_wins[(7,)](out)
    assert {"forward": out[0] == 6, "reverse": out[0] == 0}.get(order, 0 <= out[0] < 7)
    with execute(order=order), pytest.raises(RaceError, match="out at byte 0"):
        kernels.last_program_wins[(7,)](out)


def test_a_launch_that_is_not_compiled_is_a_failure(kernels) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = InterpretedFunction(kernels.add_one.fn)
    x = torch.zeros(8, dtype=torch.int32)
    with execute(), pytest.raises(NotExecutedError, match="Triton's interpreter"):
        interpreted[(1,)](x, x, 8, BLOCK=8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"grid": (65_536,)}, LaunchError, "65535 programs"),
        ({"x": torch.zeros(8, device="meta")}, LaunchError, "on the CPU, found it on meta"),
        ({"BLOCK": 0}, CompileError, "triton-ascend to take the kernel add_one"),
    ],
)
def test_a_launch_that_a_device_refuses_is_refused(kernels, change, error, message) -> None:
    x = torch.zeros(8, dtype=torch.int32)
    call = {"grid": (1,), "x": x, "BLOCK": 8, **change}
    with execute(), pytest.raises(error, match=message):
        kernels.add_one[call["grid"]](call["x"], x, 8, BLOCK=call["BLOCK"])


def test_launches_are_triton_s_again_afterwards(kernels) -> None:
    from triton.runtime.jit import JITFunction

    before = JITFunction.run
    with pytest.raises(ZeroDivisionError), execute():
        raise ZeroDivisionError
    assert JITFunction.run is before


def test_a_result_that_depends_on_local_memory_is_told_of(tmp_path: Path) -> None:
    """triton-ascend itself pads loads with zeros, so the text is written by hand."""
    from dsacp.ascend_ir import Launch
    from dsacp.ascend_ir.job import Job
    from dsacp.ascend_ir.library import build, load
    from dsacp.ascend_ir.lower import lower

    text = """module { func.func @kernel(%a: memref<?xi8>, %b: memref<?xi8>, %out: memref<?xi32>,
      %0: i32, %1: i32, %2: i32, %3: i32, %4: i32, %5: i32) attributes {S = 0 : i64} {
      %c0 = arith.constant 0 : index
      %c3 = arith.constant 3 : index
      %l = memref.alloc() : memref<4xi32>
      memref.store %3, %l[%c0] : memref<4xi32>
      %v = memref.load %l[%c3] : memref<4xi32>
      memref.store %v, %out[%c0] : memref<?xi32>
      return } }"""
    build(lower(text, "linalg", "Ascend910B3", tmp_path), "kernel", tmp_path)
    launch = Launch(SimpleNamespace(fn=SimpleNamespace(__name__="kernel")), {"out": "*i32"}, {})
    tensors = {"out": torch.zeros(1, dtype=torch.int32)}
    job = Job("linalg", "forward", None, launch, tensors, (1, 1, 1), load(tmp_path))
    with pytest.raises(UninitialisedError, match="another byte 0 of out"):
        job.run_guarded("end")
    assert tensors["out"].tolist() == [0]


SUITE = """
import torch, pytest, os, triton
from ir_kernels import add_one

X = torch.arange(100, dtype=torch.int32)

def test_right():
    out = torch.zeros_like(X)
    add_one[(2,)](X, out, 100, BLOCK=64)
    assert torch.equal(out, X + 1)

def test_wrong():
    add_one[(2,)](X, torch.zeros(90, dtype=torch.int32), 100, BLOCK=64)

def test_ends_its_process():
    os.abort()

@pytest.mark.skip(reason="told")
def test_skipped():
    pass
"""


def test_a_suite_runs_under_the_plug_in(compilers, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths}
    plugin = ["-p", "dsacp.ascend_ir.pytest_plugin", "-p", "no:randomly", "--ascend-ir=linalg"]
    command = [sys.executable, "-m", "pytest", "-rs", *plugin, "--ascend-ir-jobs=2", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 1 passed, 1 skipped" in done.stdout
    assert "10 stores out, 4 to 40 bytes after it" in done.stdout
    assert "ended by SIGABRT" in done.stdout
    assert "told" in done.stdout
    assert "ascend-ir linalg: 1 launches of 1 kernels, 2 programs" in done.stdout
