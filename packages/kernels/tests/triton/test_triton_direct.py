"""Launch by handle: what the installed Triton's launcher takes, checked without a GPU."""

import importlib.util
import inspect
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton

from dsacp.core import LayoutError
from dsacp.kernels import direct

driver = pytest.importorskip("triton.backends.nvidia.driver", reason="no CUDA back end in here")
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
KNOWN = direct.OLDEST <= VERSION <= direct.NEWEST


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch):
    """As if torch were built for CUDA, and nothing known yet about this Triton."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    direct.run_is_known.cache_clear()
    yield
    direct.run_is_known.cache_clear()


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch):
    """The current CUDA device, as a list of one index, which ``torch.cuda.device`` changes."""
    devices = [2]

    @contextmanager
    def switch(index: int):
        before, devices[0] = devices[0], index
        yield
        devices[0] = before

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: devices[0], raising=False)
    monkeypatch.setattr(torch.cuda, "device", switch)
    return devices


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, current: list[int]):
    """A compiled kernel whose launches are bound to the installed launcher's parameters."""
    calls = []
    signature = inspect.signature(driver.CudaLauncher.__call__)

    def run(*args: object) -> None:
        calls.append({**signature.bind(None, *args).arguments, "current": current[0]})

    fake = SimpleNamespace(get_current_stream=lambda device: 70 + device)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=fake))
    compiled = SimpleNamespace(run=run, function=99, packed_metadata=(4, 1, 0))
    hooked = lambda *args: calls.append((*args, "current", current[0]))  # noqa: E731
    by_handle = direct._by_handle(compiled, hooked, (5, 1, 1), 2, (True, 64))
    return by_handle, calls


@pytest.mark.skipif(not KNOWN, reason="another Triton keeps its own launcher")
def test_the_installed_launcher_is_known(launched) -> None:
    by_handle, calls = launched
    assert direct.run_is_known()
    by_handle(0x1000, 3)
    (call,) = calls
    head = [call[name] for name in direct.GRID]
    assert head == [5, 1, 1, 72, 99]
    rest = [call[name] for name in direct.HOOKS if name in call] + list(call["args"])
    assert rest == [(4, 1, 0), None, None, None, 0x1000, 3, True, 64]


@pytest.mark.skipif(not KNOWN, reason="another Triton keeps its own launcher")
def test_a_profiler_s_hook_gets_triton_s_own_launch(launched) -> None:
    by_handle, calls = launched
    chain = triton.knobs.runtime.launch_enter_hook
    chain.add(print)
    try:
        by_handle(0x1000, 3)
    finally:
        chain.remove(print)
    by_handle(0x1000, 3)
    assert calls[0] == (0x1000, 3, True, 64, "current", 2)
    assert calls[1]["function"] == 99


@pytest.mark.skipif(not KNOWN, reason="another Triton keeps its own launcher")
@pytest.mark.parametrize("hooked", [False, True])
def test_a_handle_is_launched_on_its_own_device(launched, current, hooked: bool) -> None:
    """Tensors on cuda:2, current device 0: the launch belongs to device 2, and 0 stays current."""
    by_handle, calls = launched
    chain = triton.knobs.runtime.launch_enter_hook
    current[0] = 0
    if hooked:
        chain.add(print)
    try:
        by_handle(0x1000, 3)
    finally:
        if hooked:
            chain.remove(print)
    assert current == [0]
    assert hooked or [calls[0]["current"], calls[0]["stream"]] == [2, 72]
    assert not hooked or calls == [(0x1000, 3, True, 64, "current", 2)]


def other_launch(self, grid, stream, function, *args) -> None:
    """What a Triton to come might have."""


@pytest.mark.parametrize("change", ["parameters", "version", "backend", "rocm", "interpreter"])
def test_what_is_not_known_keeps_triton_s_launcher(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    calls = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: calls.append((grid, args, options))

    if change == "parameters":
        monkeypatch.setattr(driver.CudaLauncher, "__call__", other_launch)
    elif change == "version":
        monkeypatch.setattr(triton, "__version__", "3.10.0")
    elif change == "backend":
        monkeypatch.delattr(driver, "CudaLauncher")
    elif change == "rocm":
        monkeypatch.setattr(torch.version, "cuda", None)
    if change != "interpreter":
        monkeypatch.setattr(triton, "JITFunction", Kernel)
    assert not direct.takes_addresses(Kernel())
    direct.launcher(Kernel(), (1, 1, 1), 0, (torch.int32,), {"BLOCK": 8}, 1)("tensor")
    assert calls == [((1, 1, 1), ("tensor",), {"BLOCK": 8, "num_warps": 1})]


def test_addresses_are_of_one_device() -> None:
    here, other = torch.zeros(4), torch.zeros(4)
    assert direct.addresses(here, other, other[1:]) == [other.data_ptr(), other.data_ptr() + 4]
    on_device = SimpleNamespace(get_device=lambda: 0, device=torch.device("cuda:0"))
    with pytest.raises(LayoutError, match=r"on cuda:0, found .* on cpu"):
        direct.addresses(on_device, here)
