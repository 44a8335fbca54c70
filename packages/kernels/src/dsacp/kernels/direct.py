"""Launch a compiled Triton kernel without what its JIT does on every call.

Imports Triton: for the kernels' ``triton`` modules only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

OLDEST, NEWEST = (3, 6), (3, 9)
"""Triton versions whose ``compiled[grid]`` takes every parameter in order, constants included."""


def cuda_device(tensor: Tensor) -> int | None:
    """Return a tensor's CUDA device, or None away from CUDA."""
    return tensor.get_device() if tensor.is_cuda else None


def launcher(
    kernel: Any,
    grid: tuple[int, int, int],
    device: int | None,
    sample: Sequence[torch.dtype | int],
    constants: Mapping[str, object],
    num_warps: int = 4,
) -> Callable[..., None]:
    """Return a function that launches ``kernel`` with its runtime arguments.

    On CUDA the kernel is compiled here and launched by its handle: no argument is specialised and
    no cache key is made again. Interpreter, triton-ascend and other versions keep their launcher.

    Args:
        kernel: a jitted function that specialises no runtime argument and whose constants come
            last.
        grid: programs.
        device: ``cuda_device`` of a tensor; part of every key under which callers keep this.
        sample: runtime arguments, with a pointer's element type in its place.
        constants: compile-time arguments in the order of the parameters.
        num_warps: warps of a program.
    """
    if device is None or not _takes_plain_arguments(kernel):
        jitted = kernel[grid]

        def by_jit(*args: object) -> None:
            jitted(*args, **constants, num_warps=num_warps)

        return by_jit
    with torch.cuda.device(device):  # Handles belong to the device that is current.
        compiled = kernel.warmup(*sample, grid=grid, num_warps=num_warps, **constants)
        run, last = compiled[grid], tuple(constants.values())

    def by_handle(*args: object) -> None:
        run(*args, *last)

    return by_handle


def _takes_plain_arguments(kernel: Any) -> bool:
    major, minor = triton.__version__.split(".")[:2]
    known = OLDEST <= (int(major), int(minor)) <= NEWEST
    return known and torch.version.cuda is not None and isinstance(kernel, triton.JITFunction)
