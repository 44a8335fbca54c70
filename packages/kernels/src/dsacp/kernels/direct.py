"""Launch a compiled Triton kernel without what its JIT does on every call.

Imports Triton: for the kernels' ``triton`` modules only.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
import triton
from torch import Tensor

from dsacp.kernels.checks import check_device

OLDEST, NEWEST = (3, 6), (3, 9)
"""Triton versions whose compiled kernels were seen to take every parameter, constants included."""

GRID = ["gridX", "gridY", "gridZ", "stream", "function"]
HOOKS = ["kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook"]
"""Parameters of a compiled kernel's ``run`` before the kernel's own; 3.6 names GRID only."""


def cuda_device(tensor: Tensor) -> int | None:
    """Return a tensor's CUDA device, or None away from CUDA."""
    return tensor.get_device() if tensor.is_cuda else None


def addresses(out: Tensor, *others: Tensor) -> list[int]:
    """Return the addresses of ``others``, checked as Triton's launcher would, but at less cost.

    Raises:
        LayoutError: one is not on the device of ``out``.
    """
    device = out.get_device()
    if any(tensor.get_device() != device for tensor in others):
        check_device(out, *others)
    return [tensor.data_ptr() for tensor in others]


def launcher(
    kernel: Any,
    grid: tuple[int, int, int],
    device: int | None,
    sample: Sequence[torch.dtype | int],
    constants: Mapping[str, object],
    num_warps: int = 4,
) -> Callable[..., None]:
    """Return a function that launches ``kernel`` with its runtime arguments.

    Where ``takes_addresses``, the kernel is compiled here and launched by its handle: no argument
    is specialised, no cache key is made again, and an address may stand for a tensor.
    Interpreter, triton-ascend and other versions keep their launcher.

    Args:
        kernel: a jitted function that specialises no runtime argument and whose constants come
            last.
        grid: programs.
        device: ``cuda_device`` of a tensor; part of every key under which callers keep this.
        sample: runtime arguments, with a pointer's element type in its place.
        constants: compile-time arguments in the order of the parameters.
        num_warps: warps of a program.
    """
    if device is None or not takes_addresses(kernel):
        jitted = kernel[grid]

        def by_jit(*args: object) -> None:
            jitted(*args, **constants, num_warps=num_warps)

        return by_jit
    with torch.cuda.device(device):  # Handles belong to the device that is current.
        compiled = kernel.warmup(*sample, grid=grid, num_warps=num_warps, **constants)
        hooked = compiled[grid]  # Loads the module.
    return _by_handle(compiled, hooked, grid, device, tuple(constants.values()))


def _by_handle(
    compiled: Any,
    hooked: Callable[..., None],
    grid: tuple[int, int, int],
    device: int,
    constants: tuple[object, ...],
) -> Callable[..., None]:
    run, packed = compiled.run, compiled.packed_metadata
    stream_of = triton.runtime.driver.active.get_current_stream
    function, hooks = compiled.function, triton.knobs.runtime

    current_device = torch._C._cuda_getDevice

    def by_handle(*args: object) -> None:
        if current_device() != device:
            # A handle belongs to one device's context, which need not be the current one.
            with torch.cuda.device(device):
                by_handle(*args)
            return
        if _is_set(hooks.launch_enter_hook) or _is_set(hooks.launch_exit_hook):
            hooked(*args, *constants)
            return
        stream = stream_of(device)
        run(*grid, stream, function, packed, None, None, None, *args, *constants)

    return by_handle


def _is_set(hook: Any) -> bool:
    """Tell whether a launch hook does anything: an empty chain would still be called."""
    return bool(getattr(hook, "calls", hook))


def takes_addresses(kernel: Any) -> bool:
    """Tell whether ``launcher`` launches by handle, which takes plain integers for pointers."""
    return isinstance(kernel, triton.JITFunction) and run_is_known()


@cache
def run_is_known() -> bool:
    """Tell whether the installed CUDA launcher has the parameters that ``launcher`` passes."""
    major, minor = triton.__version__.split(".")[:2]
    if not OLDEST <= (int(major), int(minor)) <= NEWEST or torch.version.cuda is None:
        return False
    try:
        run = import_module("triton.backends.nvidia.driver").CudaLauncher.__call__
    except (ImportError, AttributeError):
        return False
    parameters = inspect.signature(run).parameters.values()
    named = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    rest = [item for item in parameters if item.kind is item.VAR_POSITIONAL]
    return named[1:] in (GRID, GRID + HOOKS) and len(rest) == 1
