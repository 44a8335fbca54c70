"""Record what Triton launchers would launch, on a machine that cannot run them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.jit import JITFunction

from dsacp.ascend_ir import Launch
from dsacp.kernels import Kernel
from dsacp.kernels.draft_steps.triton_tiles import CUDA_TILES, LARGE_CUDA_TILES
from dsacp.kernels.sas_plan.triton import constants as plan_constants
from dsacp.kernels.sparse_attention.triton import tile_sizes


def folder_of(launch: Launch) -> str:
    """Return the folder of ``dsacp.kernels`` that a launch's kernel lies in."""
    return str(launch.kernel.fn.__module__).split(".")[2]


def record(call: Callable[[], object], device_type: str) -> list[Launch]:
    """Run ``call`` with every kernel forced to Triton and every launch recorded, not run.

    Tensors are on the CPU, so constants that depend on the device are set for ``device_type``; a
    launch that a device cuts in several ways by size is recorded in each of them.
    """
    launches: list[Launch] = []

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        launches.extend(_on_device(Launch.of(kernel, args, kwargs), device_type))

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


def _on_device(launch: Launch, device_type: str) -> list[Launch]:
    """Return what ``device_type`` launches instead."""
    if folder_of(launch) == "sparse_attention":
        launch.constants.update(_attention_constants(launch, device_type))
    if folder_of(launch) == "sas_plan":
        launch.constants.update(plan_constants(device_type))
    if folder_of(launch) != "draft_steps" or device_type != "cuda":
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
