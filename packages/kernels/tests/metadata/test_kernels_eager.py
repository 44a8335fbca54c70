"""Calls past the dispatcher, but not where a mode, a compiler or a subclass would miss them."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dsacp.core import LayoutError
from dsacp.kernels import Kernel
from dsacp.kernels.checks import check_device
from dsacp.kernels.eager import are_plain, bound_call, is_watched, past_dispatcher


class Watcher(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Listener(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    """A tensor that its own code may stand behind."""


@pytest.fixture
def calls() -> list[str]:
    return []


def test_modes_see_the_operator(calls: list[str]) -> None:
    call = past_dispatcher(lambda *_: calls.append("op"), lambda *_: calls.append("direct"))
    call(torch.zeros(1), [torch.zeros(1)], None, 3)
    with Watcher():
        call(torch.zeros(1))
    with Listener():
        call(torch.zeros(1))
    call(torch.zeros(1))
    assert calls == ["direct", "op", "op", "direct"]


def test_a_compiler_sees_the_operator() -> None:
    seen = []

    def run(x: torch.Tensor) -> torch.Tensor:
        return x + is_watched()

    def backend(graph, _):
        seen.append(graph)
        return graph.forward

    assert torch.compile(run, backend=backend, fullgraph=True)(torch.zeros(1)) == 1
    assert seen
    assert run(torch.zeros(1)) == 0


def test_subclasses_reach_the_operator(calls: list[str]) -> None:
    call = past_dispatcher(lambda *_: calls.append("op"), lambda *_: calls.append("direct"))
    wrapped = torch.zeros(1).as_subclass(Subclass)
    call(wrapped)
    call(1, (torch.zeros(1), wrapped))
    assert calls == ["op", "op"]
    assert are_plain([torch.nn.Parameter(torch.zeros(1)), "text"])


def test_binding_waits_for_a_call_that_nobody_sees(calls: list[str]) -> None:
    def bind():
        calls.append("bind")
        return lambda: calls.append("bound")

    call = bound_call(lambda: calls.append("op"), bind)
    with Watcher():
        call()
    call()
    call()
    assert calls == ["op", "bind", "bound", "bound"]


def test_what_cannot_be_bound_stays_an_operator(calls: list[str]) -> None:
    call = bound_call(lambda: calls.append("op"), lambda: None)
    call()
    call()
    assert calls == ["op", "op"]


def test_the_reference_is_never_bound(calls: list[str]) -> None:
    kernel = Kernel("k", print, "builtins:print", "builtins:nowhere")
    run = kernel.prepare(lambda *args: calls.append(args), (7,), torch.device("cpu"), "auto")
    run()
    assert calls == [(7, "auto")]


def test_tensors_of_two_devices_are_refused() -> None:
    here, there = torch.zeros(1), torch.zeros(2, 3, device="meta")
    check_device(here, here)
    with pytest.raises(LayoutError, match=r"on cpu, found torch.float32 of shape \(2, 3\) on meta"):
        check_device(here, here, there)
