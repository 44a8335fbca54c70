"""Checks that run before a buffer is touched."""

import torch
from torch import Tensor

from dsacp.core import LayoutError


def check_int32(**tensors: Tensor) -> None:
    """Raise ``LayoutError`` unless every tensor is a contiguous 1-D int32 tensor."""
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
            raise LayoutError(
                f"expected {name} as contiguous 1-D int32, found {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} and stride {tensor.stride()}: convert it before the call"
            )
