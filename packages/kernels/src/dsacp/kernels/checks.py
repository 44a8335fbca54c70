"""Checks that run before a buffer is touched."""

import torch
from torch import Tensor

from dsacp.core import LayoutError


def is_dense(tensor: Tensor, dtype: torch.dtype, dims: int) -> bool:
    """Tell whether ``tensor`` is a contiguous tensor of this type and these many dimensions."""
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype is dtype
        and tensor.dim() == dims
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def describe(tensor: object) -> str:
    """Name what an error message has to say of a tensor, or of what is none."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"{tensor.dtype} of layout {tensor.layout}"
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} and stride {tensor.stride()}"


def check_strided(**tensors: Tensor) -> None:
    """Raise ``LayoutError`` unless all are tensors of addresses and strides."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise LayoutError(
                f"expected {name} as a strided tensor, found {describe(tensor)}: pass the tensor "
                "whose words the kernel reads"
            )


def check_int32(**tensors: Tensor) -> None:
    """Raise ``LayoutError`` unless every tensor is a contiguous 1-D int32 tensor."""
    for name, tensor in tensors.items():
        if not is_dense(tensor, torch.int32, 1):
            raise LayoutError(
                f"expected {name} as contiguous 1-D int32, found {describe(tensor)}: convert it "
                "before the call"
            )


def check_length(name: str, tensor: Tensor, count: int) -> None:
    """Raise ``LayoutError`` unless ``tensor`` has exactly ``count`` entries."""
    if tensor.numel() != count:
        raise LayoutError(
            f"expected {name} of {count} entries, found {tensor.numel()}: pass a view of exactly "
            "the entries to write"
        )


def check_unrecorded(*tensors: Tensor | None) -> None:
    """Raise ``LayoutError`` for a tensor whose gradient torch would record, as no kernel can."""
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise LayoutError(
                f"expected tensors without gradients, found {describe(tensor)} that requires one: "
                "detach it, or call under torch.no_grad()"
            )


def check_writable(*tensors: Tensor) -> None:
    """Raise ``LayoutError`` unless torch lets every tensor be written in place, here and now."""
    check_unrecorded(*tensors)
    for tensor in tensors:
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise LayoutError(
                f"expected buffers that may be written outside inference mode, found "
                f"{describe(tensor)} made inside it: allocate it outside, or call inside"
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
    plain = isinstance(table, Tensor) and table.layout is torch.strided
    if not plain or table.dtype is not torch.int32 or table.dim() != 2 or 0 in table.shape:
        raise LayoutError(
            f"expected {name} as non-empty int32 [requests, blocks], found {describe(table)}: bind "
            "the persistent block table"
        )
    if table.stride(1) != 1 and table.shape[1] > 1:
        raise LayoutError(
            f"expected {name} with unit column stride, found stride {table.stride()}: bind the "
            "table itself, not its transpose"
        )


def check_rope_tables(cos_table: Tensor, sin_table: Tensor) -> None:
    """Raise ``LayoutError`` unless both are contiguous fp32 matrices of one non-empty shape."""
    for name, table in (("cos", cos_table), ("sin", sin_table)):
        fits = is_dense(table, torch.float32, 2)
        if not fits or table.shape != cos_table.shape or 0 in table.shape:
            raise LayoutError(
                f"expected the {name} table as contiguous non-empty fp32 of cos's shape, "
                f"{describe(cos_table)}, found {describe(table)}: build both tables from one "
                "configuration"
            )
    check_unrecorded(cos_table, sin_table)
    check_device(cos_table, sin_table)


def check_layout(name: str, layout: Tensor, leading: int | str, fields: int) -> None:
    """Raise ``LayoutError`` unless ``layout`` is contiguous int32 [leading, steps, fields].

    ``leading`` in words stands for any number.
    """
    fits = is_dense(layout, torch.int32, 3)
    if isinstance(leading, int):
        fits = fits and layout.shape[0] == leading
    if not fits or layout.shape[2] != fields:
        raise LayoutError(
            f"expected {name} as contiguous int32 [{leading}, steps, {fields}], found "
            f"{describe(layout)}: pass the layout of the banks"
        )


def check_rope_bank(rope_bank: Tensor) -> None:
    """Raise ``LayoutError`` unless ``rope_bank`` is contiguous 1-D fp32."""
    if not is_dense(rope_bank, torch.float32, 1):
        raise LayoutError(
            f"expected rope_bank as contiguous 1-D fp32, found {describe(rope_bank)}: pass the "
            "storage of the RoPE banks"
        )


def check_layouts_device(storage: Tensor, *layouts: Tensor) -> None:
    """Raise ``LayoutError`` unless every layout lies on the host or beside ``storage``."""
    check_device(storage, *[layout for layout in layouts if not layout.is_cpu])


def check_device(first: Tensor, *others: Tensor | None) -> None:
    """Raise ``LayoutError`` unless all tensors lie on the device of ``first``."""
    device = first.device
    for tensor in others:
        if tensor is not None and tensor.device != device:
            raise LayoutError(
                f"expected every tensor on {device}, found {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} on {tensor.device}: a kernel takes addresses, move it there"
            )
