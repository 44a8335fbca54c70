"""A watch over masked loads in Triton's interpreter: what Ascend's compiler would read."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor


def is_grid(addresses: np.ndarray) -> bool:
    """Tell whether addresses grow by one step along each axis, which Ascend makes a slice of.

    Lanes that all have one address are a gather whose indices happen to be equal.
    """
    if addresses.size > 1 and (addresses == addresses.flat[0]).all():
        return False
    steps = [np.diff(addresses.astype(np.int64), axis=axis) for axis in range(addresses.ndim)]
    return all(step.size == 0 or (step == step.flat[0]).all() for step in steps)


class MaskedLoads:
    """Finds lanes of gathers that point outside every tensor of a launch, masked ones included.

    Triton-Ascend loads all lanes of a gather and selects by the mask afterwards; only a slice
    honours its mask. A gather that happens to be a grid is taken for a slice.
    """

    def __init__(self) -> None:
        self.outside: list[str] = []
        self.gathers = 0
        self._spans: list[tuple[int, int]] = []

    def know(self, tensors: Iterable[Any]) -> None:
        """Take the words of tensors for readable."""
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.numel():
                strides = zip(tensor.shape, tensor.stride(), strict=True)
                last = sum((size - 1) * stride for size, stride in strides)
                start = tensor.data_ptr()
                self._spans.append((start, start + (last + 1) * tensor.element_size()))

    def forget(self) -> None:
        """Start a launch."""
        self._spans = []

    def see(self, addresses: np.ndarray) -> None:
        """Check one masked load."""
        if is_grid(addresses):
            return
        self.gathers += 1
        inside = np.zeros(addresses.shape, dtype=bool)
        for start, stop in self._spans:
            inside |= (addresses >= start) & (addresses < stop)
        if not inside.all():
            nearest = min(
                (int(address) - edge for address in addresses[~inside].flat for span in self._spans
                 for edge in span),
                key=abs,
            )  # fmt: skip
            count = int((~inside).sum())
            self.outside.append(f"{count} of {inside.size} lanes, the nearest by {nearest} bytes")
