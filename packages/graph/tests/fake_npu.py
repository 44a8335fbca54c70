"""A pretend NPU in Python, for processes of their own: device discipline, host syncs, graph calls.

Tensors hide a CPU tensor; mixing devices raises; reads from the host are counted, and fail while
the pretend driver captures. The graph only writes down how it was called.
"""

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}


class Driver:
    """What the device saw."""

    def __init__(self):
        self.syncs, self.calls, self.capturing = [], [], False

    def wait(self, what):
        self.syncs.append(what)
        if self.capturing:
            raise RuntimeError(f"rtMemcpy 107030: {what} while the stream is capturing")

    def call(self, name, *values):
        self.calls.append((name, *values))


DRIVER = Driver()


class DeviceTensor(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host):
        made = torch._C._acc.create_empty_tensor(host.shape, host.dtype)
        made.__class__ = cls
        return made

    def __init__(self, host):
        self.host = host


class NPUGraph:
    """Signatures as torch_npu 2.13 has them."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        DRIVER.call("capture_begin", pool, capture_error_mode)
        DRIVER.capturing = True

    def capture_end(self):
        DRIVER.call("capture_end")
        DRIVER.capturing = False

    def replay(self):
        DRIVER.call("replay")

    def reset(self):
        DRIVER.call("reset")

    def pool(self):
        return (0, 7)


class Stream:
    device_type, stream_id, device_index = 20, 0, 0

    def __init__(self, device=None):
        DRIVER.call("Stream", str(device))

    def wait_stream(self, other):
        DRIVER.call("wait_stream", type(other).__name__)


@contextmanager
def stream(entered):
    DRIVER.call("enter stream", type(entered).__name__)
    try:
        yield
    finally:
        DRIVER.call("leave stream")


def _module():
    return SimpleNamespace(
        is_initialized=lambda: True,
        is_available=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
        get_amp_supported_dtype=lambda: [torch.float16],
        synchronize=lambda device=None: DRIVER.call("synchronize", str(device)),
        NPUGraph=NPUGraph,
        Stream=Stream,
        current_stream=lambda device=None: Stream(device),
        stream=stream,
        memory_snapshot=lambda: [],
    )


def _run(op, *args, **kwargs):
    name = op._schema.name
    if name in WAITING:
        DRIVER.wait(name)

    def to_host(value):
        if isinstance(value, DeviceTensor):
            return value.host
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            raise RuntimeError(f"{name}: expected every tensor on npu, found one on the cpu")
        on_device = isinstance(value, torch.device) and value.type == "npu"
        return torch.device("cpu") if on_device else value

    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
    host_args, host_kwargs = pytree.tree_map(to_host, (args, kwargs))
    made = op(*host_args, **host_kwargs)

    def to_device(value):
        if not isinstance(value, torch.Tensor):
            return value
        known = [item for item in given if item.host is value]
        return known[0] if known else DeviceTensor(value)

    return pytree.tree_map(to_device, made)


def _copy_from(source, target, non_blocking=False):
    on_device = [isinstance(item, DeviceTensor) for item in (source, target)]
    if not all(on_device):
        DRIVER.wait("copy to the device" if on_device[1] else "copy to the host")
    hosts = [item.host if isinstance(item, DeviceTensor) else item for item in (target, source)]
    hosts[0].copy_(hosts[1])
    return target


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return DeviceTensor(torch.empty(size, dtype=dtype))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def install():
    """Make ``npu`` a device of this process; keep what is returned."""
    module = _module()
    _setup_privateuseone_for_python_backend("npu", backend_module=module)
    sys.modules["torch_npu"] = ModuleType("torch_npu")
    fallback, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    fallback.fallback(_run, "PrivateUse1")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    aten.impl("detach", lambda item: DeviceTensor(item.host.detach()), "PrivateUse1")
    return fallback, aten
