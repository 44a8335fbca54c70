"""Launches, reports, the cache of compiled kernels and forked calls."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsacp.ascend_ir import Fault, IrError, Launch, LaunchError, MemoryFaultError, RaceError, cache
from dsacp.ascend_ir.execute import programs_of
from dsacp.ascend_ir.forked import run_forked
from dsacp.ascend_ir.report import error_of


def parameter(name, constant=False, special=True, **default):
    return SimpleNamespace(
        name=name,
        is_constexpr=constant,
        do_not_specialize=not special,
        has_default=bool(default),
        default=default.get("default"),
    )


KERNEL = SimpleNamespace(
    fn=SimpleNamespace(__name__="kernel"),
    params=[
        parameter("x"),
        parameter("n"),
        parameter("m", special=False),
        parameter("scale", default=1.5),
        parameter("other"),
        parameter("BLOCK", constant=True),
    ],
)
KERNEL.arg_names = [item.name for item in KERNEL.params]
TENSOR = torch.zeros(4, dtype=torch.bfloat16)


def test_a_launch_is_typed_as_triton_types_it() -> None:
    launch = Launch.of(KERNEL, (TENSOR, 1, 1), {"other": None, "BLOCK": 8, "num_warps": 4})
    types = {"x": "*bf16", "n": "i32", "m": "i32", "scale": "fp32"}
    assert launch.signature == types
    assert launch.constants == {"BLOCK": 8, "other": None}
    assert launch.options == {"num_warps": 4}
    special = Launch.of(KERNEL, (TENSOR, 1, 1), {"other": 2**40, "BLOCK": 8}, specialise=True)
    assert special.constants == {"BLOCK": 8, "n": 1}
    assert special.signature == {"x": "*bf16", "m": "i32", "scale": "fp32", "other": "i64"}
    assert "other" in special.aligned
    assert "m" not in special.aligned


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((TENSOR, 1), "found no m, other, BLOCK"),
        ((TENSOR, 1, 1, 1.0, "text", 8), "expected other as a tensor or a number, found str"),
        ((TENSOR.to(torch.complex64), 1, 1, 1.0, 0, 8), "found torch.complex64"),
    ],
)
def test_a_launch_that_no_kernel_takes_is_refused(args, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        Launch.of(KERNEL, args, {})


def test_grids_are_those_of_a_device() -> None:
    assert programs_of("k", (3,)) == (3, 1, 1)
    assert programs_of("k", (65_535,)) == (65_535, 1, 1)
    for grid in ((65_536,), (256, 256), (-1,), (1, 1, 1, 1)):
        with pytest.raises(LaunchError, match="at most 3 axes and 65535 programs"):
            programs_of("k", grid)


def fault(kind="load", **changes):
    fields = {"kernel": "k", "argument": "x", "side": "after", "nearest": 4, "farthest": 144}
    fields |= {"count": 36, "programs": ((1, 0, 0),), "line": "k.py:6"}
    return Fault(kind=kind, **fields | changes)


def test_a_report_says_who_did_what_where() -> None:
    error = error_of([fault("writes", side="at", nearest=8, farthest=8), fault("store")])
    assert isinstance(error, MemoryFaultError)
    text = "36 stores x, 4 to 144 bytes after it, by program (1, 0, 0) of k, at k.py:6"
    assert text in str(error)
    assert [item.kind for item in error.faults] == ["store"]
    race = error_of([fault("writes", side="at", nearest=8, farthest=8)], lost=2)
    assert isinstance(race, RaceError)
    assert "of x at byte 8" in str(race)
    assert "and 2 more places" in str(race)
    nowhere = fault(argument="no argument", side="before", nearest=-(2**63), farthest=-(2**63))
    assert "address 0x8000000000000000, which no argument is near" in str(nowhere)


def test_errors_are_one_family() -> None:
    import dsacp.ascend_ir as package

    names = [name for name in package.__all__ if name.endswith("Error")]
    assert len(names) == 9
    assert all(issubclass(getattr(package, name), IrError) for name in names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_a_kernel_is_compiled_once_for_what_it_depends_on(folder: Path) -> None:
    made = []

    def make(at: Path) -> None:
        made.append(at)
        (at / "kernel.so").write_text("code")

    first = cache.entry(("k", 1), make)
    assert cache.entry(("k", 1), make) == first
    assert cache.entry(("k", 2), make) != first
    assert len(made) == 2
    assert (first / "kernel.so").read_text() == "code"
    assert {path.parent for path in folder.iterdir()} == {folder}
    assert len(list(folder.iterdir())) == 2


def test_a_kernel_that_does_not_compile_leaves_nothing(folder: Path) -> None:
    def fail(at: Path) -> None:
        (at / "half").write_text("")
        raise IrError("no")

    with pytest.raises(IrError):
        cache.entry("k", fail)
    assert list(folder.iterdir()) == []


def test_processes_may_compile_the_same_kernel_at_once(folder: Path) -> None:
    def make(at: Path) -> None:
        time.sleep(0.2)
        (at / "kernel.so").write_text(str(os.getpid()))

    def compile_it() -> str:
        return (cache.entry("k", make) / "kernel.so").read_text()

    answers = list(run_forked([compile_it] * 4, 4, 60))
    assert {answer.error for answer in answers} == {""}
    assert len({answer.value for answer in answers}) == 1
    assert len(list(folder.iterdir())) == 1


def test_forked_calls_answer_in_order_whatever_happens_to_them() -> None:
    def slow() -> str:
        time.sleep(0.3)
        return "slow"

    def raises() -> None:
        raise ValueError("told")

    def hangs() -> None:
        time.sleep(60)

    def killed() -> None:
        os.kill(os.getpid(), 9)

    calls = [slow, lambda: "quick", raises, killed, lambda: os._exit(3), lambda: [b"x" * 500_000]]
    found = list(run_forked(calls, 3, 30))
    assert [answer.value for answer in found[:2]] == ["slow", "quick"]
    assert "ValueError: told" in found[2].error
    assert "SIGKILL" in found[3].error
    assert "ended with 3" in found[4].error
    assert found[5].value == [b"x" * 500_000]
    (answer,) = run_forked([hangs], 1, 0.3)
    assert "within its time" in answer.error
