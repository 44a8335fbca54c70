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


def check_starts(query_start_loc: Tensor, seq_lens: Tensor) -> None:
    """Raise ``LayoutError`` unless there is one start more than there are lengths."""
    if query_start_loc.numel() != seq_lens.numel() + 1:
        raise LayoutError(
            f"expected query_start_loc of {seq_lens.numel() + 1} entries for {seq_lens.numel()} "
            f"requests, found {query_start_loc.numel()}: slice both to the same batch"
        )


def check_block_table(name: str, table: Tensor, block_size: int) -> None:
    """Raise ``LayoutError`` unless ``table`` is non-empty int32 2-D with unit column stride."""
    if block_size < 1:
        raise LayoutError(f"expected a block size >= 1 for {name}, found {block_size}")
    if table.dtype is not torch.int32 or table.dim() != 2 or 0 in table.shape:
        raise LayoutError(
            f"expected {name} as non-empty int32 [requests, blocks], found {table.dtype} of shape "
            f"{tuple(table.shape)}: bind the persistent block table"
        )
    if table.stride(1) != 1 and table.shape[1] > 1:
        raise LayoutError(
            f"expected {name} with unit column stride, found stride {table.stride()}: bind the "
            "table itself, not its transpose"
        )


def check_rope_tables(cos_table: Tensor, sin_table: Tensor) -> None:
    """Raise ``LayoutError`` unless both are contiguous fp32 matrices of one non-empty shape."""
    for name, table in (("cos", cos_table), ("sin", sin_table)):
        fits = table.dtype is torch.float32 and table.dim() == 2 and table.is_contiguous()
        if not fits or table.shape != cos_table.shape or 0 in table.shape:
            raise LayoutError(
                f"expected the {name} table as contiguous fp32 of shape {tuple(cos_table.shape)}, "
                f"found {table.dtype} of shape {tuple(table.shape)} and stride {table.stride()}: "
                "build both tables from one configuration"
            )


def check_layout(name: str, layout: Tensor, leading: int | str, fields: int) -> None:
    """Raise ``LayoutError`` unless ``layout`` is contiguous int32 [leading, steps, fields].

    ``leading`` in words stands for any number.
    """
    fits = layout.dtype is torch.int32 and layout.dim() == 3 and layout.is_contiguous()
    if isinstance(leading, int):
        fits = fits and layout.shape[0] == leading
    if not fits or layout.shape[2] != fields:
        raise LayoutError(
            f"expected {name} as contiguous int32 [{leading}, steps, {fields}], found "
            f"{layout.dtype} of shape {tuple(layout.shape)}: pass the layout of the banks"
        )


def check_rope_bank(rope_bank: Tensor) -> None:
    """Raise ``LayoutError`` unless ``rope_bank`` is contiguous 1-D fp32."""
    fits = rope_bank.dtype is torch.float32 and rope_bank.dim() == 1
    if not fits or not rope_bank.is_contiguous():
        raise LayoutError(
            f"expected rope_bank as contiguous 1-D fp32, found {rope_bank.dtype} of shape "
            f"{tuple(rope_bank.shape)}: pass the storage of the RoPE banks"
        )


def check_device(first: Tensor, *others: Tensor) -> None:
    """Raise ``LayoutError`` unless all tensors lie on the device of ``first``."""
    for tensor in others:
        if tensor.device != first.device:
            raise LayoutError(
                f"expected every tensor on {first.device}, found {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}: a kernel takes addresses, move it there"
            )
