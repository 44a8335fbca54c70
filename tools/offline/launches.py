"""Record what Triton launchers would launch, on a machine that cannot run them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.jit import JITFunction

from dsacp.kernels import Kernel
from dsacp.kernels.draft_steps.triton_tiles import CUDA_TILES, LARGE_CUDA_TILES
from dsacp.kernels.sas_plan.triton import constants as plan_constants
from dsacp.kernels.sparse_attention.triton import tile_sizes

POINTERS = {
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int8: "*i8",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Launch:
    """One compilation: a kernel, the types of its arguments, and its compile-time constants."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The folder of ``dsacp.kernels`` that the kernel lies in."""
        return str(self.kernel.fn.__module__).split(".")[2]


def record(call: Callable[[], object], device_type: str) -> list[Launch]:
    """Run ``call`` with every kernel forced to Triton and every launch recorded, not run.

    Tensors are on the CPU, so constants that depend on the device are set for ``device_type``; a
    launch that a device cuts in several ways by size is recorded in each of them.
    """
    launches: list[Launch] = []

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        launches.extend(_on_device(_launch(kernel, args, kwargs), device_type))

    with patch.object(JITFunction, "run", run), _forced_triton():
        call()
    return launches


@contextmanager
def _forced_triton() -> Iterator[None]:
    select = Kernel.select

    def forced(kernel: Kernel, device: torch.device, _: str = "auto") -> Callable[..., None]:
        return select(kernel, device, "reference" if kernel.triton is None else "triton")

    with patch.object(Kernel, "select", forced):
        yield


def _launch(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    names = kernel.arg_names
    values = dict(zip(names, args, strict=False))
    values |= {name: value for name, value in kwargs.items() if name in names}
    options = {n: v for n, v in kwargs.items() if n not in names and n.startswith("num_")}
    constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
    signature = {name: _type_of(value) for name, value in values.items() if name not in constants}
    return Launch(kernel, signature, constants, options)


def _on_device(launch: Launch, device_type: str) -> list[Launch]:
    """Return what ``device_type`` launches instead."""
    if launch.name == "sparse_attention":
        launch.constants.update(_attention_constants(launch, device_type))
    if launch.name == "sas_plan":
        launch.constants.update(plan_constants(device_type))
    if launch.name != "draft_steps" or device_type != "cuda":
        return [launch]
    return [
        replace(
            launch,
            constants=launch.constants | tiles.constants(),
            options={"num_warps": tiles.warps},
        )
        for tiles in (CUDA_TILES, LARGE_CUDA_TILES)
    ]


def _attention_constants(launch: Launch, device_type: str) -> dict[str, Any]:
    heads, dim = launch.constants["HEADS"], launch.constants["DIM"]
    block_heads, block_keys = tile_sizes(heads, dim, 2, device_type)
    return {"BLOCK_HEADS": block_heads, "BLOCK_KEYS": block_keys, "WIDEN": False}


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"
