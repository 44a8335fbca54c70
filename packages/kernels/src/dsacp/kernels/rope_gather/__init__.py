"""RoPE rows of a batch's tokens (upstream U33)."""

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_rope_tables,
    check_writable,
    describe,
    is_dense,
)
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.rope_gather import reference

KERNEL = Kernel(
    "rope_gather", reference.rope_gather, "dsacp.kernels.rope_gather.triton:rope_gather"
)


@kernel_op("dsacp::rope_gather", mutates_args=("out_cos", "out_sin"))
def _rope_gather_op(
    positions: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    impl: str,
) -> None:
    KERNEL.select(positions.device, impl)(positions, cos_table, sin_table, out_cos, out_sin)


def rope_gather(
    positions: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    impl: Impl = "auto",
) -> None:
    """Gather cos and sin rows in one launch, in place.

    Args:
        positions: int32 [T]; one outside the table reads its nearest row, never past it.
        cos_table: fp32 [L, rd], contiguous.
        sin_table: fp32 [L, rd], contiguous.
        out_cos: fp32 [T, rd], contiguous.
        out_sin: fp32 [T, rd], contiguous.
        impl: forces "reference" or "triton".

    Raises:
        LayoutError: a dtype, shape or device does not fit, or a gradient would be recorded; no
            output is then touched.
    """
    check_int32(positions=positions)
    check_rope_tables(cos_table, sin_table)
    shape = (positions.numel(), cos_table.shape[1])
    for name, out in (("out_cos", out_cos), ("out_sin", out_sin)):
        if not is_dense(out, torch.float32, 2) or out.shape != shape:
            raise LayoutError(
                f"expected {name} as contiguous fp32 {shape}, found {describe(out)}: pass one row "
                "a position"
            )
    check_device(positions, cos_table, sin_table, out_cos, out_sin)
    check_writable(out_cos, out_sin)
    _rope_gather_op(positions, cos_table, sin_table, out_cos, out_sin, impl)
