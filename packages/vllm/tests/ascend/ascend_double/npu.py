"""Stand-in for ``torch_npu``: the names that vllm-ascend touches while it is imported.

Nothing here computes. A name that is not listed raises AttributeError, so that a test can never
pass on an attribute that nobody thought about.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

EVENTS = ("Event", "ExternalEvent", "NPUGraph", "Stream")
"""Classes that are only written into annotations."""
DTYPES = ("float4_e2m1fn_x2", "float8_e8m0fnu", "hifloat8")
"""Names of number formats that vllm-ascend puts into tables at import."""


def _module(name: str) -> ModuleType:
    module = ModuleType(name, "stand-in of the host double")
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    sys.modules[name] = module
    return module


def install_torch_npu() -> ModuleType:
    """Put the stand-in where ``import torch_npu`` and ``torch.npu`` find it."""
    root, device, native = (
        _module(name) for name in ("torch_npu", "torch_npu.npu", "torch_npu._C")
    )
    for name in EVENTS:
        setattr(device, name, type(name, (), {}))
    for name in DTYPES:
        setattr(root, name, object())
    native._NPUTaskGroupHandle = type("_NPUTaskGroupHandle", (), {})
    device.is_available = lambda: False
    device.device_count = lambda: 0
    root.npu, root._C, root.__version__ = device, native, "0+dsacp.double"
    sys.modules["torch.npu"] = device
    torch.npu = device
    return root
