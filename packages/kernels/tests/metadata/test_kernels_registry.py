"""How an implementation is picked, and what registered operators promise to torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from dsacp.core import UnsupportedHostError
from dsacp.kernels import DRAFT_FIELDS, Kernel

CPU = torch.device("cpu")
WORD = {"dtype": torch.int32}


def nothing() -> None:
    """Stand in for a reference."""


def test_cpu_and_force_pick_the_reference() -> None:
    kernel = Kernel("k", nothing, "json:dumps")
    assert kernel.select(CPU) is nothing
    assert kernel.select(torch.device("cuda"), "reference") is nothing


class Devices:
    """Stands in for ``torch.cuda`` where there is none."""

    def __init__(self) -> None:
        self.current = 0

    def current_device(self) -> int:
        return self.current

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before


def test_launches_go_to_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on cuda:1 with device 0 current: every launch ran on device 0 and its stream."""
    devices, calls = Devices(), []
    monkeypatch.setattr("dsacp.kernels.devices._module", lambda _: devices)
    monkeypatch.setattr("dsacp.kernels.registry.has_triton", lambda: True)

    def launch(*args: object) -> None:
        calls.append((*args, devices.current))

    monkeypatch.setattr("dsacp.kernels.registry._load", lambda _: launch)
    kernel = Kernel("k", nothing, "here:launch")
    kernel.select(torch.device("cuda:1"))("other")
    kernel.select(torch.device("privateuseone:1"), "triton")("other")
    assert calls == [("other", 1), ("other", 1)]
    assert devices.current == 0
    assert kernel.select(torch.device("cuda:0")) is launch
    assert kernel.select(CPU, "triton") is launch


def test_a_kernel_without_triton_says_so() -> None:
    kernel = Kernel("k", nothing)
    assert kernel.select(torch.device("cuda")) is nothing
    with pytest.raises(UnsupportedHostError, match="k, but it has none"):
        kernel.select(CPU, "triton")


def test_triton_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsacp.kernels.registry.has_triton", lambda: False)
    kernel = Kernel("k", nothing, "json:dumps")
    assert kernel.select(torch.device("cuda")) is nothing
    with pytest.raises(UnsupportedHostError, match="triton is not installed"):
        kernel.select(CPU, "triton")


def operator_calls() -> dict[str, tuple[object, ...]]:
    starts, lens = torch.tensor([0, 2, 3], **WORD), torch.tensor([5, 9], **WORD)
    words, bank = torch.full((300,), -5, **WORD), torch.zeros(300)
    layout = torch.arange(len(DRAFT_FIELDS), **WORD).view(1, 1, -1) * 10
    rope_layout = torch.tensor([[[0, 100]]], **WORD)
    zeros = partial(torch.zeros, **WORD)
    table, cos = torch.ones(2, 4, **WORD), torch.rand(16, 4)
    steps = ([2], [3], [4], [6], [3], [1])
    return {
        "clear_tails": (words, layout, bank, rope_layout, [4], 0, *steps, "auto"),
        "stage_inputs": (starts, lens, None, lens, 2, 3, words, 4, True, "auto"),
        "local_metadata": (starts, lens, *(zeros(n) for n in (3, 2, 2)), 1, 3, True, "auto"),
        "slot_mapping": (lens, lens - 5, table, 4, torch.zeros(2, **WORD), False, "auto"),
        "rope_gather": (lens, cos, cos, torch.zeros(2, 4), torch.zeros(2, 4), "auto"),
        "draft_steps": (
            *(starts, lens, lens - lens, torch.tensor([2], **WORD), None, [table, cos, cos]),
            *(torch.zeros(5, dtype=torch.int64), words, layout, bank, rope_layout),
            *([1, 1, 4, 2, 3, 0, 1, 0, 2, 64, 0, 0, 1], "auto"),
        ),
    }


@pytest.mark.parametrize("name", operator_calls())
def test_operators_change_what_they_declare(name: str) -> None:
    operator = getattr(torch.ops.dsacp, name).default
    torch.library.opcheck(
        operator, operator_calls()[name], test_utils=("test_schema", "test_faketensor")
    )
