"""No host sync and no compilation on the hot path; launches are counted."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsacp.core import HostSyncError
from dsacp.graph import LaunchCounter, capture, no_host_sync, no_jit_compile


@torch.library.custom_op("dsacp_graph_test::host_kernel", mutates_args=("out",))
def host_kernel(source: Tensor, out: Tensor) -> None:
    out.copy_(torch.tensor([value + 1 for value in source.tolist()]))


SYNCS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "print": repr,
    "tensor": lambda x: x + torch.tensor([1, 2, 3]),
    "as_tensor": lambda _: torch.as_tensor([1]),
    "from_numpy": lambda _: torch.from_numpy(np.zeros(3)),
    "list index": lambda x: x[[0, 2]],
    "array index": lambda x: x[np.array([0, 2])],
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "mask write": lambda x: x.index_put_((x > 1,), x[:2]),
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x),
    "is_nonzero": lambda x: torch.is_nonzero(x[0]),
    "allclose": lambda x: torch.allclose(x.float(), x.float()),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave(x),
    "if": lambda x: 1 if x.sum() > 3 else 2,
}


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
@pytest.mark.parametrize("step", SYNCS.values(), ids=SYNCS)
def test_host_syncs_are_refused(step: Callable[[Tensor], object], inference: bool) -> None:
    """vllm-ascend #8587, #15509: a synchronous copy under capture, fatal hours later."""
    x = torch.arange(3)
    with torch.inference_mode(inference):
        with pytest.raises(HostSyncError), no_host_sync():
            step(x)
        with pytest.raises(HostSyncError):
            capture(lambda: step(x), device="cpu", warmup=0)
    assert x.tolist() == [0, 1, 2], "refused before it ran"


def test_device_only_steps_pass(toy: Any) -> None:
    """vllm-ascend #8587: a refresh moves nothing between host and device."""
    x = torch.arange(6)
    with no_host_sync():
        toy.refresh()
        x.masked_fill_(x > 3, 0)
        x[x > 2] = 7
        torch.where(x > 2, x, 0)
        x[torch.arange(2)].repeat_interleave(x[:2] * 0 + 2, output_size=4)
        torch.as_tensor(x).data_ptr()
        torch.full((2,), 3).index_select(0, torch.zeros(1, dtype=torch.int64))


def test_message_names_the_buffer(toy: Any) -> None:
    lens = toy.field("tail", 1, "seq_lens")
    with pytest.raises(HostSyncError, match=r"tail/step1/seq_lens .int32 \[5\]. by tolist"):
        capture(lens.tolist, device="cpu", guard=toy.guard(), warmup=0)
    with (
        pytest.raises(HostSyncError, match="tail/step1/seq_lens"),
        no_host_sync(toy.guard().label_of),
    ):
        lens.nonzero()


def test_python_of_a_custom_op_is_a_kernel_on_the_cpu() -> None:
    source, out = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with no_host_sync():
        graph = capture(lambda: host_kernel(source, out), device="cpu")
        source.fill_(5)
        graph.replay()
    assert out.tolist() == [6, 6, 6]


def test_warm_up_may_sync_and_strict_can_be_turned_off() -> None:
    x, seen = torch.arange(3), []
    graph = capture(
        lambda: seen.append(0) if seen else seen.append(x.tolist()), device="cpu", warmup=1
    )
    graph.replay()
    assert len(seen) == 2
    capture(x.tolist, device="cpu", strict=False)


def test_launches_are_counted() -> None:
    source, out = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with LaunchCounter() as counter:
        host_kernel(source[:3], out.view(3))
        out.add_(1).unsqueeze_(0)
        torch.empty(3).reshape(3, 1).expand(3, 2)
        source * 2
    assert dict(counter.by_name) == {
        "dsacp_graph_test::host_kernel": 1,
        "aten::add_": 1,
        "aten::mul": 1,
    }
    assert counter.count == 3


def test_a_replay_is_one_launch() -> None:
    x = torch.zeros(3)
    graph = capture(lambda: x.add_(1).mul_(2), device="cpu")
    with LaunchCounter() as counter:
        graph.replay()
    assert dict(counter.by_name) == {"graph::replay": 1}


@pytest.mark.parametrize("style", ["knobs", "class"])
def test_compilation_under_capture_is_refused(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    """SGLang #32470, vLLM #39483: a kernel was compiled inside a capture."""
    runtime = SimpleNamespace(jit_cache_hook=None)
    function = SimpleNamespace(cache_hook=None)
    fake = SimpleNamespace(runtime=SimpleNamespace(JITFunction=function))
    if style == "knobs":
        fake.knobs = SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "triton", fake)
    compiled: set[str] = set()

    def launch(name: str) -> None:
        hook = runtime.jit_cache_hook if style == "knobs" else function.cache_hook
        if name not in compiled:
            if hook is not None:
                hook(key="k", repr=name, fn=SimpleNamespace(name=name), compile={})
            compiled.add(name)

    with pytest.raises(HostSyncError, match="compiling draft_steps_kernel"):
        capture(lambda: launch("draft_steps_kernel"), device="cpu", warmup=0)
    assert runtime.jit_cache_hook is None
    assert function.cache_hook is None
    capture(lambda: launch("draft_steps_kernel"), device="cpu", warmup=1)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Triton's hooks, and ``compile_kernel``, which asks them as a compilation does."""
    runtime = SimpleNamespace(jit_cache_hook=None)
    fake = SimpleNamespace(knobs=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "triton", fake)

    def compile_kernel() -> object:
        hook = runtime.jit_cache_hook
        return None if hook is None else hook(fn=SimpleNamespace(name="other"))

    runtime.compile_kernel = compile_kernel
    return runtime


def test_another_thread_may_compile_meanwhile(hooks: SimpleNamespace) -> None:
    """A thread that compiled while another one captured got the capture's error."""
    asked = []
    hooks.jit_cache_hook = lambda **info: asked.append(info["fn"].name)
    with no_jit_compile(), ThreadPoolExecutor(1) as pool:
        pool.submit(hooks.compile_kernel).result()
        with pytest.raises(HostSyncError, match="compiling other"):
            hooks.compile_kernel()
    assert asked == ["other"]


def test_threads_that_leave_out_of_order_forbid_nothing(hooks: SimpleNamespace) -> None:
    first, second = no_jit_compile(), no_jit_compile()
    with ThreadPoolExecutor(1) as pool:
        first.__enter__()
        pool.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        hooks.compile_kernel()
        with pytest.raises(HostSyncError):
            pool.submit(hooks.compile_kernel).result()
        pool.submit(second.__exit__, None, None, None).result()
        pool.submit(hooks.compile_kernel).result()
    hooks.compile_kernel()


def test_no_triton_means_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    with no_jit_compile():
        pass
