"""Run by test_graph_device.py in a process of its own; prints one line of JSON a check."""

import json
import traceback

import fake_npu
import pytest
import torch

from dsacp.core import HostSyncError, UnsupportedHostError
from dsacp.graph import LaunchCounter, capture, no_host_sync

KEPT = fake_npu.install()
DRIVER = fake_npu.DRIVER


@torch.library.custom_op("dsacp_graph_test::waits", mutates_args=("out",))
def waits(source: torch.Tensor, out: torch.Tensor) -> None:
    out.fill_(source.sum().item())


@torch.library.custom_op("dsacp_graph_test::doubles", mutates_args=("out",))
def doubles(source: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(source * 2)


def device_tensor():
    made = torch.arange(4, dtype=torch.int32).to("npu")
    DRIVER.syncs.clear()
    DRIVER.calls.clear()
    return made


def expect_sync(fn):
    with pytest.raises(HostSyncError), no_host_sync():
        fn()
    assert DRIVER.syncs == [], f"the device waited first: {DRIVER.syncs}"


def check_reads_are_refused_before_the_device_waits():
    x = device_tensor()
    host = torch.arange(4, dtype=torch.int32)
    for fn in (
        x[0].item,
        x.cpu,
        x.tolist,
        lambda: bool(x[0]),
        x.nonzero,
        lambda: x[x > 1],
        lambda: x.to("cpu"),
        lambda: x.copy_(host),
        lambda: host.to("npu"),
        lambda: x[torch.zeros(2, dtype=torch.int64)],
        lambda: torch.tensor([1], device="npu"),
    ):
        expect_sync(fn)


def check_sync_inside_a_custom_op_is_refused():
    x = device_tensor()
    out = torch.empty_like(x)
    expect_sync(lambda: waits(x, out))
    with no_host_sync():
        doubles(x, out)
    assert out.cpu().tolist() == [0, 2, 4, 6]


def check_device_only_work_passes():
    x = device_tensor()
    with no_host_sync():
        x.add_(1).mul_(2)
        y = torch.where(x > 4, x, 0)
    assert DRIVER.syncs == []
    assert y.cpu().tolist() == [0, 0, 6, 8]


def check_capture_binds_the_graph_calls():
    x = device_tensor()
    runs = []
    graph = capture(lambda: runs.append(x.add_(1)), device="npu:0", warmup=2, pool=(0, 3))
    graph.replay()
    graph.release()
    names = [call[0] for call in DRIVER.calls]
    assert len(runs) == 3
    assert names.count("wait_stream") == 2
    assert ("capture_begin", (0, 3), "global") in DRIVER.calls
    assert names[names.index("capture_begin") :] == [
        *("capture_begin", "capture_end", "leave stream", "replay", "reset")
    ]
    assert names[names.index("capture_begin") - 1] == "enter stream"


def check_sync_under_capture_is_ours_before_the_drivers():
    x = device_tensor()
    with pytest.raises(HostSyncError, match="by cpu"):
        capture(x.cpu, device="npu", warmup=0)
    assert DRIVER.syncs == []
    assert [call[0] for call in DRIVER.calls][-3:] == ["capture_end", "leave stream", "reset"]
    assert not DRIVER.capturing


def check_driver_errors_become_ours():
    x = device_tensor()
    with pytest.raises(HostSyncError, match="107030") as caught:
        capture(x.cpu, device="npu", warmup=0, strict=False)
    assert isinstance(caught.value.__cause__, RuntimeError)


class SharedGraph(fake_npu.NPUGraph):
    """torch.accelerator.Graph of torch 2.12: the pool is given when it is made."""

    def __init__(self, keep_graph=False, *, pool=None, capture_error_mode="default"):
        DRIVER.call("Graph", keep_graph, pool, capture_error_mode)

    def capture_begin(self):
        DRIVER.call("begin shared")


def check_accelerator_graph_is_used_or_refused():
    x = device_tensor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "Graph", SharedGraph, raising=False)
        graph = capture(lambda: x.add_(1), device="npu", api="accelerator", pool=(0, 3), warmup=0)
        graph.replay()
        assert ("Graph", False, (0, 3), "default") in DRIVER.calls
        assert ("begin shared",) in DRIVER.calls
        patch.delattr(torch.accelerator, "Graph")
        with pytest.raises(UnsupportedHostError, match=r"torch 2\.12"):
            capture(lambda: None, device="npu", api="accelerator", warmup=0)
    with pytest.raises(UnsupportedHostError, match="found the CPU"):
        capture(lambda: None, device="cpu", api="accelerator")


def check_launches_of_device_ops():
    x = device_tensor()
    with LaunchCounter() as counter:
        x.view(2, 2)[0].add_(1)
        torch.empty_like(x)
    assert dict(counter.by_name) == {"aten::add_": 1}, counter.by_name


for name, check in list(globals().items()):
    if name.startswith("check_"):
        try:
            check()
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        print(json.dumps([name, outcome]), flush=True)
