"""Slots, RoPE rows and positions of the groups that a step completes (upstream U15)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_strided,
    check_unrecorded,
    check_writable,
)
from dsacp.kernels.compressor_rows import reference
from dsacp.kernels.registry import Impl, Kernel, kernel_op

KERNEL = Kernel(
    "compressor_rows",
    reference.compressor_rows,
    "dsacp.kernels.compressor_rows.triton:compressor_rows",
)


@dataclass(frozen=True)
class CompressorRows:
    """One row per group of ``ratio`` raw tokens completed by a step, in request order.

    Attributes:
        slot_mapping: int32 [T'] flat slots, or [T', 2] of (page, offset); -1 (page -1, offset
            block size - 1) on rows without a group.
        positions: int32 [T'], raw position of the group's first token; -1 without a group.
        requests: int32 [T'], owning request; -1 without a group.
        cos: [T', rotary_dim] of the table's dtype; 1 without a group.
        sin: [T', rotary_dim]; 0 without a group.
    """

    slot_mapping: Tensor
    positions: Tensor
    requests: Tensor
    cos: Tensor
    sin: Tensor


def compressor_row_count(num_tokens: int, num_reqs: int, ratio: int) -> int:
    """Return T', the most groups that ``num_tokens`` tokens of ``num_reqs`` requests complete."""
    return min(num_tokens, num_tokens // ratio + num_reqs)


@kernel_op(
    "dsacp::compressor_rows",
    mutates_args=("out_slots", "out_positions", "out_requests", "out_cos", "out_sin"),
)
def _compressor_rows_op(
    query_start_loc: Tensor,
    start_pos: Tensor,
    seq_lens: Tensor | None,
    block_table: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    out_slots: Tensor,
    out_positions: Tensor,
    out_requests: Tensor,
    out_cos: Tensor,
    out_sin: Tensor,
    ratio: int,
    block_size: int,
    impl: str,
) -> None:
    KERNEL.select(query_start_loc.device, impl)(
        query_start_loc, start_pos, seq_lens, block_table, cos_table, sin_table, out_slots,
        out_positions, out_requests, out_cos, out_sin, ratio, block_size,
    )  # fmt: skip


def compressor_rows(
    query_start_loc: Tensor,
    start_pos: Tensor,
    block_table: Tensor,
    cos_table: Tensor,
    sin_table: Tensor,
    *,
    ratio: int,
    block_size: int,
    num_rows: int | None = None,
    seq_lens: Tensor | None = None,
    slot_format: Literal["flat", "block_offset"] = "flat",
    out: CompressorRows | None = None,
    impl: Impl = "auto",
) -> CompressorRows:
    """Compute where the compressor writes, and with which rotation, in one launch.

    Request b completes ``(start + q) // ratio - start // ratio`` groups if ``start >= 0`` and
    ``q > 0``; its j-th group is compressed position ``start // ratio + j``, rotated as the raw
    position of its first token. All T' rows are written; a row of no group has slot, position and
    request -1, cos 1 and sin 0. Without requests all rows are such.

    Args:
        query_start_loc: int32 [B+1], global query starts.
        start_pos: int32 [B], position of each request's first query token.
        block_table: int32 [>= B, M] of the compressed cache.
        cos_table: [L, rotary_dim], unit stride.
        sin_table: like ``cos_table``.
        ratio: raw tokens a group.
        block_size: compressed rows a page.
        num_rows: T'; needed when ``out`` is None.
        seq_lens: int32 [B]; when given, requests of length 0 (padding) complete nothing.
        slot_format: "flat" or "block_offset", used when ``out`` is None.
        out: buffers to write in place; allocated when None.
        impl: forces "reference" or "triton".

    Returns:
        ``out``, or the new tensors.

    Raises:
        LayoutError: shapes, dtypes or sizes contradict each other.
    """
    _check_inputs(query_start_loc, start_pos, seq_lens, block_table, ratio, block_size)
    if out is None:
        if num_rows is None:
            raise LayoutError(
                "expected num_rows or out, found neither: pass compressor_row_count(...)"
            )
        out = _allocate(num_rows, cos_table, slot_format, query_start_loc.device)
    _check_rope(cos_table, sin_table, out)
    check_device(
        query_start_loc, start_pos, seq_lens, block_table, cos_table, sin_table, *vars(out).values()
    )
    check_unrecorded(cos_table, sin_table)
    check_writable(*vars(out).values())
    _compressor_rows_op(
        query_start_loc, start_pos, seq_lens, block_table, cos_table, sin_table, out.slot_mapping,
        out.positions, out.requests, out.cos, out.sin, ratio, block_size, impl,
    )  # fmt: skip
    return out


def _allocate(
    num_rows: int, cos_table: Tensor, slot_format: str, device: torch.device
) -> CompressorRows:
    shape = (num_rows,) if slot_format == "flat" else (num_rows, 2)
    return CompressorRows(
        torch.empty(shape, dtype=torch.int32, device=device),
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty((num_rows, cos_table.shape[1]), dtype=cos_table.dtype, device=device),
        torch.empty((num_rows, cos_table.shape[1]), dtype=cos_table.dtype, device=device),
    )


def _check_inputs(
    query_start_loc: Tensor,
    start_pos: Tensor,
    seq_lens: Tensor | None,
    block_table: Tensor,
    ratio: int,
    block_size: int,
) -> None:
    check_int32(query_start_loc=query_start_loc, start_pos=start_pos)
    check_strided(block_table=block_table)
    num_reqs = start_pos.numel()
    lengths = {"query_start_loc": query_start_loc.numel() - 1}
    if seq_lens is not None:
        check_int32(seq_lens=seq_lens)
        lengths["seq_lens"] = seq_lens.numel()
    for name, found in lengths.items():
        if found != num_reqs:
            raise LayoutError(
                f"expected {name} for the {num_reqs} requests of start_pos, found "
                f"{found}: slice all of them to the same batch"
            )
    if block_table.dtype is not torch.int32 or block_table.dim() != 2:
        raise LayoutError(f"expected block_table as int32 [B, M], found {block_table.dtype}")
    if block_table.shape[0] < num_reqs or block_table.shape[1] < 1 or block_table.stride(1) != 1:
        raise LayoutError(
            f"expected block_table of at least {num_reqs} rows with unit column stride, found "
            f"shape {tuple(block_table.shape)} and stride {block_table.stride()}"
        )
    if ratio < 1 or block_size < 1:
        raise LayoutError(f"expected ratio and block_size >= 1, found {ratio} and {block_size}")


def _check_rope(cos_table: Tensor, sin_table: Tensor, out: CompressorRows) -> None:
    check_strided(cos_table=cos_table, sin_table=sin_table, **vars(out))
    if cos_table.dim() != 2 or not cos_table.is_contiguous() or not sin_table.is_contiguous():
        raise LayoutError(f"expected contiguous [L, rd] tables, found {tuple(cos_table.shape)}")
    if sin_table.shape != cos_table.shape or sin_table.dtype != cos_table.dtype:
        raise LayoutError(
            f"expected equal cos and sin tables, found {tuple(cos_table.shape)} {cos_table.dtype} "
            f"and {tuple(sin_table.shape)} {sin_table.dtype}"
        )
    rows = out.positions.numel()
    check_int32(positions=out.positions, requests=out.requests)
    slots = out.slot_mapping
    if slots.dtype is not torch.int32 or tuple(slots.shape) not in {(rows,), (rows, 2)}:
        raise LayoutError(
            f"expected slot_mapping as int32 [{rows}] or [{rows}, 2], found {slots.dtype} of shape "
            f"{tuple(slots.shape)}"
        )
    if out.requests.numel() != rows or not slots.is_contiguous():
        raise LayoutError(f"expected {rows} contiguous rows in every output, found fewer or more")
    for name, rope in (("cos", out.cos), ("sin", out.sin)):
        if tuple(rope.shape) != (rows, cos_table.shape[1]) or rope.dtype != cos_table.dtype:
            raise LayoutError(
                f"expected {name} as {cos_table.dtype} [{rows}, {cos_table.shape[1]}], found "
                f"{rope.dtype} of shape {tuple(rope.shape)}"
            )
        if not rope.is_contiguous():
            raise LayoutError(f"expected contiguous {name}, found stride {rope.stride()}")
