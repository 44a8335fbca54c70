"""Rank-local query starts, lengths and start positions (upstream U21)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import TokenShard
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_length,
    check_starts,
    check_writable,
)
from dsacp.kernels.local_metadata import reference
from dsacp.kernels.registry import Impl, Kernel, kernel_op

KERNEL = Kernel(
    "local_metadata", reference.local_metadata, "dsacp.kernels.local_metadata.triton:local_metadata"
)


@dataclass(frozen=True)
class LocalMetadata:
    """Metadata of one rank's tokens.

    Attributes:
        query_start_loc: int32 [B+1], starts inside the rank's slice.
        seq_lens: int32 [B], KV length visible to the rank's last token of each request.
        start_pos: int32 [B], global position of each request's first query token.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    start_pos: Tensor


@kernel_op(
    "dsacp::local_metadata",
    mutates_args=("out_query_start_loc", "out_seq_lens", "out_start_pos"),
    direct=True,
)
def _local_metadata_op(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out_query_start_loc: Tensor,
    out_seq_lens: Tensor,
    out_start_pos: Tensor,
    shard_start: int,
    shard_end: int,
    causal: bool,
    impl: str,
) -> None:
    KERNEL.select(query_start_loc.device, impl)(
        query_start_loc,
        seq_lens,
        out_query_start_loc,
        out_seq_lens,
        out_start_pos,
        shard_start,
        shard_end,
        causal,
    )


def local_metadata(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    shard: TokenShard,
    *,
    causal: bool = True,
    out: LocalMetadata | None = None,
    impl: Impl = "auto",
) -> LocalMetadata:
    """Compute one rank's view of a batch in one launch, without a scan.

    Args:
        query_start_loc: int32 [B+1], global query starts.
        seq_lens: int32 [B], KV lengths including this step's queries; 0 marks padding.
        shard: the rank's token range.
        causal: False for DSpark's mutually visible query block (upstream U35).
        out: buffers of exactly these shapes to write in place; allocated when None.
        impl: forces "reference" or "triton".

    Returns:
        ``out``, or the new tensors.

    Raises:
        LayoutError: a dtype, length or device does not fit; ``out`` is then untouched.
    """
    check_int32(query_start_loc=query_start_loc, seq_lens=seq_lens)
    check_starts(query_start_loc, seq_lens)
    check_device(query_start_loc, seq_lens)
    if out is not None:
        _check_out(out, query_start_loc, seq_lens)
    else:
        out = LocalMetadata(
            torch.empty_like(query_start_loc),
            torch.empty_like(seq_lens),
            torch.empty_like(seq_lens),
        )
    _local_metadata_op(
        query_start_loc,
        seq_lens,
        out.query_start_loc,
        out.seq_lens,
        out.start_pos,
        shard.start,
        shard.end,
        causal,
        impl,
    )
    return out


def _check_out(out: LocalMetadata, query_start_loc: Tensor, seq_lens: Tensor) -> None:
    """Raise ``LayoutError`` unless every buffer is like the input that it belongs to.

    torch resizes an ``out=`` of another size, over what lies behind it, and casts to its dtype.
    """
    buffers = {
        "out.query_start_loc": (out.query_start_loc, query_start_loc),
        "out.seq_lens": (out.seq_lens, seq_lens),
        "out.start_pos": (out.start_pos, seq_lens),
    }
    for name, (buffer, like) in buffers.items():
        check_int32(**{name: buffer})
        check_length(name, buffer, like.numel())
        check_device(like, buffer)
        check_writable(buffer)
