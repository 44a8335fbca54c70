"""Which implementation of a kernel runs: chosen by device, or forced by name."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from dsacp.core import UnsupportedHostError

Impl = Literal["auto", "reference", "triton"]


@dataclass(frozen=True)
class Kernel:
    """A kernel: its torch reference, always there, and where its Triton launcher lives.

    ``triton`` is ``"package.module:function"``, imported on first use only, so that importing a
    kernel never imports Triton. Both callables take the same arguments and return None.
    """

    name: str
    reference: Callable[..., None]
    triton: str | None = None

    def select(self, device: torch.device, impl: str = "auto") -> Callable[..., None]:
        """Return the implementation for ``device``.

        Raises:
            UnsupportedHostError: ``impl="triton"`` was forced and there is none, or no Triton.
        """
        if impl == "reference" or (impl == "auto" and device.type == "cpu"):
            return self.reference
        if self.triton is not None and importlib.util.find_spec("triton") is not None:
            return _load(self.triton)
        if impl == "triton":
            reason = "it has none" if self.triton is None else "the module triton is not installed"
            raise UnsupportedHostError(
                f"expected a Triton implementation of {self.name}, but {reason}: install "
                "dsacp-kernels[cuda] or [ascend], or use impl='reference'"
            )
        return self.reference


@cache
def _load(target: str) -> Callable[..., None]:
    module, _, function = target.partition(":")
    launcher: Callable[..., None] = getattr(importlib.import_module(module), function)
    return launcher
