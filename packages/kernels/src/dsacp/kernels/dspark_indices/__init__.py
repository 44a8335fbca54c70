"""Absolute cache slots that every token of a DSpark block attends to (upstream U36)."""

import torch
from torch import Tensor

from dsacp.core import LayoutError, round_up
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_strided,
    check_writable,
    describe,
    is_dense,
)
from dsacp.kernels.dspark_indices import reference
from dsacp.kernels.registry import Impl, Kernel, kernel_op

KERNEL = Kernel(
    "dspark_indices", reference.dspark_indices, "dsacp.kernels.dspark_indices.triton:dspark_indices"
)
INDEX_ALIGNMENT = 128
MAX_WIDTH = 2048


def dspark_index_width(window: int, num_draft_tokens: int) -> int:
    """Return the columns that a window and one block of draft tokens need, rounded up to 128."""
    return round_up(window + num_draft_tokens, INDEX_ALIGNMENT)


@kernel_op("dsacp::dspark_indices", mutates_args=("out",))
def _dspark_indices_op(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    out: Tensor,
    window: int,
    block_size: int,
    impl: str,
) -> None:
    KERNEL.select(out.device, impl)(query_start_loc, seq_lens, block_table, out, window, block_size)


def dspark_indices(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    window: int,
    num_draft_tokens: int,
    block_size: int,
    num_tokens: int | None = None,
    index_width: int | None = None,
    out: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Compute ``ori_indices`` of a non-causal block, in one launch.

    All tokens of request b share one row: the last ``min(window, prefix)`` cached positions
    before the block (``prefix = seq_lens[b] - q_b``) and the ``q_b`` positions of the block, as
    flat slots, then -1. Rows of no request and of padding (length 0) are -1 throughout, and so
    is an entry outside the block table, on a negative page, or whose slot would pass int32.

    Args:
        query_start_loc: int32 [B+1], global query starts.
        seq_lens: int32 [B], KV lengths including the block.
        block_table: int32 [>= B, M].
        window: tokens of the sliding window, W.
        num_draft_tokens: query tokens of a block, K.
        block_size: slots a page.
        num_tokens: T, padded; needed when ``out`` is None.
        index_width: columns, at least W + K; the rounded-up minimum when None.
        out: int32 [T, 1, width] to write in place; allocated when None.
        impl: forces "reference" or "triton".

    Returns:
        ``out``, or the new tensor.

    Raises:
        LayoutError: the width is too small, or shapes and dtypes contradict each other.
    """
    _check_inputs(query_start_loc, seq_lens, block_table, block_size)
    width = dspark_index_width(window, num_draft_tokens) if index_width is None else index_width
    if out is None:
        if num_tokens is None:
            raise LayoutError("expected num_tokens or out, found neither: pass the padded tokens")
        out = torch.empty((num_tokens, 1, width), dtype=torch.int32, device=seq_lens.device)
    if not is_dense(out, torch.int32, 3):
        raise LayoutError(f"expected out as contiguous int32 [T, 1, width], found {describe(out)}")
    if out.shape[1] != 1 or not window + num_draft_tokens <= out.shape[2] <= MAX_WIDTH:
        raise LayoutError(
            f"expected out [T, 1, width] with width in {window + num_draft_tokens}..{MAX_WIDTH} "
            f"(window {window} + {num_draft_tokens} draft tokens), found {tuple(out.shape)}"
        )
    check_device(out, query_start_loc, seq_lens, block_table)
    check_writable(out)
    _dspark_indices_op(
        query_start_loc, seq_lens, block_table, out.squeeze(1), window, block_size, impl
    )
    return out


def _check_inputs(
    query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, block_size: int
) -> None:
    check_int32(query_start_loc=query_start_loc, seq_lens=seq_lens)
    check_strided(block_table=block_table)
    num_reqs = seq_lens.numel()
    if num_reqs == 0 or query_start_loc.numel() != num_reqs + 1:
        raise LayoutError(
            f"expected query_start_loc of one entry more than the requests (at least one), found "
            f"{query_start_loc.numel()} for {num_reqs}: slice both to the same batch"
        )
    if block_table.dtype is not torch.int32 or block_table.dim() != 2:
        raise LayoutError(f"expected block_table as int32 [B, M], found {block_table.dtype}")
    if block_table.shape[0] < num_reqs or block_table.shape[1] < 1 or block_table.stride(1) != 1:
        raise LayoutError(
            f"expected block_table of at least {num_reqs} rows with unit column stride, found "
            f"shape {tuple(block_table.shape)} and stride {block_table.stride()}"
        )
    if block_size < 1:
        raise LayoutError(f"expected block_size >= 1, found {block_size}")
