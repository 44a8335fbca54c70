"""Capture on a CUDA device: values, syncs, pools, generations."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from dsacp.core import AliasError, BufferRegion, CapacityError, HostSyncError, StaleAddressError
from dsacp.graph import GraphGuard, capture, no_host_sync

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

APIS = ["device"] + (["accelerator"] if hasattr(torch.accelerator, "Graph") else [])


@pytest.fixture
def lens() -> Any:
    return torch.tensor([5, 9, 0], dtype=torch.int32, device="cuda")


@torch.library.custom_op("dsacp_graph_test::cuda_waits", mutates_args=("out",))
def cuda_waits(source: torch.Tensor, out: torch.Tensor) -> None:
    out.fill_(source.max().item())


@torch.library.custom_op("dsacp_graph_test::cuda_doubles", mutates_args=("out",))
def cuda_doubles(source: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(source, 2, out=out)


@pytest.mark.parametrize("api", APIS)
def test_replay_equals_eager(lens: Any, api: Any) -> None:
    """intel/llm-scaler #640: captured lengths stayed in force."""
    weights, doubled = torch.rand(3, 3, device="cuda"), torch.zeros_like(lens)

    def run() -> Any:
        cuda_doubles(lens, doubled)
        return doubled.float() @ weights

    graph = capture(run, device="cuda", api=api)
    lens.copy_(torch.tensor([500, 1, 7], dtype=torch.int32))
    graph.replay()
    assert torch.equal(graph.output, run())
    graph.release()
    with pytest.raises(StaleAddressError):
        graph.replay()


def test_syncs_under_capture_are_ours(lens: Any) -> None:
    """vllm-ascend #8587: a synchronous copy under capture."""
    out = torch.zeros_like(lens)
    host = torch.zeros(3, dtype=torch.int32)
    for fn in (
        lens.cpu,
        lens.tolist,
        lens[0].item,
        lambda: lens[lens > 1],
        lambda: lens.copy_(host),
        lambda: lens[[0, 1]],
        lambda: cuda_waits(lens, out),
    ):
        with pytest.raises(HostSyncError):
            capture(fn, device="cuda", warmup=0)
        with pytest.raises(HostSyncError), no_host_sync():
            fn()
    graph = capture(lambda: out.copy_(lens), device="cuda")
    graph.replay()
    assert torch.equal(out, lens), "a refused capture leaves the device usable"


@pytest.mark.parametrize("wait", [torch.cuda.synchronize, None])
def test_syncs_that_modes_miss_are_translated(lens: Any, wait: Any) -> None:
    with pytest.raises(HostSyncError):
        capture(wait or lens.cpu, device="cuda", warmup=0, strict=False)
    capture(lambda: lens.add_(1), device="cuda").replay()


def test_pinned_copies_are_allowed_on_request(lens: Any) -> None:
    host = torch.zeros(3, dtype=torch.int32).pin_memory()
    with no_host_sync(allow_async_copies=True):
        lens.copy_(host, non_blocking=True)
        with pytest.raises(HostSyncError):
            lens.copy_(host)
    with pytest.raises(HostSyncError), no_host_sync():
        lens.copy_(host, non_blocking=True)


def test_guard_words_generation_and_pool(lens: Any) -> None:
    """vllm-ascend #16168, vLLM #55013, SGLang #22930."""
    arena = torch.zeros(16, dtype=torch.int32, device="cuda")
    region = BufferRegion("swa", 1, "seq_lens", arena.data_ptr() + 16, 12, 16)
    now = [4]
    guard = GraphGuard([region], [arena], lambda: now[0])
    guard.fill_words()
    view = arena[4:7]
    guard.watch({"lens": view})
    graph = capture(lambda: (view.copy_(lens), lens + 1)[1], device="cuda", guard=guard)
    graph.replay(check=True)
    graph.check_outside(view)
    with pytest.raises(AliasError):
        graph.check_outside(graph.output)
    guard.poison()
    graph.replay()
    guard.check_fresh(view)
    arena[7] = 3
    with pytest.raises(CapacityError, match="0x3 0 words past the end of swa/step1/seq_lens"):
        guard.check()
    now[0] = 5
    with pytest.raises(StaleAddressError, match="generation 4.*generation 5"):
        graph.replay()


def test_triton_compilation_under_capture_is_ours(lens: Any) -> None:
    """SGLang #32470, vLLM #39483: a kernel was compiled inside a capture."""
    pytest.importorskip("triton")
    source = Path(__file__).with_name("triton_probe.py")
    spec = importlib.util.spec_from_file_location("dsacp_graph_triton_probe", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    probe = module.probe
    out = torch.zeros_like(lens)
    with pytest.raises(HostSyncError, match="compiling"):
        capture(lambda: probe[(1,)](lens, out, 3), device="cuda", warmup=0)
    capture(lambda: probe[(1,)](lens, out, 3), device="cuda", warmup=1).replay()
    assert torch.equal(out, lens + 1)
