"""KV cache slots of a batch's tokens, flat or as (block, offset) pairs (upstream U11)."""

from typing import Literal

from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import (
    check_block_table,
    check_device,
    check_int32,
    check_strided,
    check_writable,
)
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.slot_mapping import reference

KERNEL = Kernel(
    "slot_mapping", reference.slot_mapping, "dsacp.kernels.slot_mapping.triton:slot_mapping"
)


@kernel_op("dsacp::slot_mapping", mutates_args=("out",))
def _slot_mapping_op(
    positions: Tensor,
    token_to_req: Tensor,
    block_table: Tensor,
    block_size: int,
    out: Tensor,
    block_offset: bool,
    impl: str,
) -> None:
    KERNEL.select(positions.device, impl)(
        positions, token_to_req, block_table, block_size, out, block_offset
    )


def slot_mapping(
    positions: Tensor,
    token_to_req: Tensor,
    block_table: Tensor,
    block_size: int,
    out: Tensor,
    fmt: Literal["flat", "block_offset"] = "flat",
    impl: Impl = "auto",
) -> None:
    """Look up the cache slot of every token, in place.

    A token has no slot where its position or request is negative or outside the table, where its
    block is negative, and where the flat slot would pass int32.

    Args:
        positions: int32 [T].
        token_to_req: int32 [T], block-table row of each token; -1 on padding.
        block_table: int32 [R, M], unit column stride, any row stride.
        block_size: cache rows of one block, >= 1.
        out: int32 [T] for "flat" (``block * block_size + offset``, -1 without a slot), int32
            [T, 2] contiguous for "block_offset" (-1 and ``block_size - 1`` without a slot).
        fmt: which of the two layouts.
        impl: forces "reference" or "triton".

    Raises:
        LayoutError: a dtype, shape or device does not fit; ``out`` is then untouched.
    """
    check_int32(positions=positions, token_to_req=token_to_req)
    check_block_table("block_table", block_table, block_size)
    check_strided(out=out)
    count = positions.numel()
    if fmt not in ("flat", "block_offset"):
        raise LayoutError(f"expected fmt 'flat' or 'block_offset', found {fmt!r}")
    shape = (count,) if fmt == "flat" else (count, 2)
    if token_to_req.numel() != count or out.shape != shape or not out.is_contiguous():
        raise LayoutError(
            f"expected token_to_req of ({count},) and contiguous out of {shape} for {count} "
            f"positions, found {tuple(token_to_req.shape)} and {tuple(out.shape)}: slice all to "
            "the same tokens"
        )
    check_int32(out=out.view(-1))
    check_device(out, positions, token_to_req, block_table)
    check_writable(out)
    _slot_mapping_op(
        positions, token_to_req, block_table, block_size, out, fmt == "block_offset", impl
    )
