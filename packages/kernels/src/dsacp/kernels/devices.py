"""Launches go to the device that holds the tensors, whichever device is current."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _module(device_type: str) -> Any:
    return torch.get_device_module(device_type)


def on_device(function: Callable[..., None], device: torch.device) -> Callable[..., None]:
    """Return ``function``, or a call of it under ``device`` where another one is current.

    Triton launches on the current device and its stream, wherever the tensors are.
    """
    index = device.index
    if index is None or device.type == "cpu":
        return function
    module = _module(device.type)
    if module.current_device() == index:
        return function

    def run(*args: object) -> None:
        with module.device(index):
            function(*args)

    return run
