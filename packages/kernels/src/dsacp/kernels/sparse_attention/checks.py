"""Argument checks of sparse attention, before any buffer is touched."""

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_starts,
    check_strided,
    check_unrecorded,
    check_writable,
)


def _expect(ok: bool, message: str) -> None:
    if not ok:
        raise LayoutError(message)


def check_tensors(*, q: Tensor, out: Tensor | None, **others: Tensor | None) -> None:
    """Check that all are tensors on q's device, that out may be written and nothing recorded."""
    tensors = {"q": q, "out": out, **others}
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    check_strided(**given)
    check_device(q, *given.values())
    check_unrecorded(*given.values())
    if out is not None:
        check_writable(out)


def check_cache(name: str, cache: Tensor, table: Tensor, q: Tensor, num_reqs: int) -> None:
    """Check a paged cache [nb, bs, 1, D] and its block table [>= B, M]."""
    _expect(
        cache.dim() == 4 and cache.shape[2] == 1 and cache.shape[3] == q.shape[2],
        f"expected {name} of shape [blocks, block size, 1, {q.shape[2]}], found "
        f"{tuple(cache.shape)}: keys and values are one tensor with one head",
    )
    _expect(
        cache.shape[0] > 0 and cache.stride(3) == 1 and cache.stride(1) == cache.shape[3],
        f"expected {name} with at least one block and contiguous blocks, found shape "
        f"{tuple(cache.shape)} and stride {cache.stride()}: only the first axis may be strided",
    )
    _expect(
        cache.dtype == q.dtype and cache.is_floating_point(),
        f"expected {name} of q's dtype {q.dtype}, found {cache.dtype}",
    )
    _expect(
        table.dtype is torch.int32 and table.dim() == 2 and table.stride(1) == 1,
        f"expected the block table of {name} as int32 [B, M] with unit column stride, found "
        f"{table.dtype} of shape {tuple(table.shape)} and stride {table.stride()}",
    )
    _expect(
        table.shape[0] >= num_reqs and table.shape[1] > 0,
        f"expected a block table of {name} with at least {num_reqs} rows and one column, found "
        f"{tuple(table.shape)}: bind the table that holds the padded batch",
    )


def check_indices(name: str, indices: Tensor, num_tokens: int) -> None:
    """Check per-token indices int32 [T, 1, K]."""
    _expect(
        indices.dtype is torch.int32
        and indices.dim() == 3
        and tuple(indices.shape[:2]) == (num_tokens, 1)
        and indices.stride(2) == 1,
        f"expected {name} as int32 [{num_tokens}, 1, K] with unit last stride, found "
        f"{indices.dtype} of shape {tuple(indices.shape)}: pad it to q's tokens",
    )


def check_query(
    q: Tensor, query_start_loc: Tensor, seq_lens: Tensor, sinks: Tensor, out: Tensor | None
) -> None:
    """Check queries, lengths, sinks and the output buffer."""
    check_int32(query_start_loc=query_start_loc, seq_lens=seq_lens)
    _expect(
        q.dim() == 3 and q.is_floating_point() and q.stride(2) == 1,
        f"expected q as floating point [T, N, D] with unit last stride, found {q.dtype} of shape "
        f"{tuple(q.shape)} and stride {q.stride()}",
    )
    check_starts(query_start_loc, seq_lens)
    _expect(
        tuple(sinks.shape) == (q.shape[1],) and sinks.is_floating_point(),
        f"expected sinks of shape ({q.shape[1]},), one per head, found {sinks.dtype} of shape "
        f"{tuple(sinks.shape)}",
    )
    if out is not None:
        _expect(
            out.shape == q.shape and out.dtype == q.dtype and out.stride(2) == 1,
            f"expected out like q, {q.dtype} of shape {tuple(q.shape)} with unit last stride, "
            f"found {out.dtype} of shape {tuple(out.shape)} and stride {out.stride()}",
        )


def check_mode(
    window_left: int,
    window_right: int,
    cmp_ratio: int,
    cmp_kv: Tensor | None,
    cmp_block_table: Tensor | None,
    cmp_indices: Tensor | None,
    ori_indices: Tensor | None,
) -> None:
    """Check that the optional tensors select one mode (upstream U16)."""
    _expect(
        window_left >= 0 and window_right >= 0,
        f"expected window bounds >= 0, found left {window_left} and right {window_right}: a "
        "window of W tokens has left W-1",
    )
    _expect(
        (cmp_kv is None) == (cmp_block_table is None),
        "expected cmp_kv and cmp_block_table together, found one of them: pass both or neither",
    )
    _expect(
        cmp_kv is not None or cmp_indices is None,
        "expected cmp_kv with cmp_indices, found None: indices choose among compressed keys",
    )
    _expect(
        cmp_kv is None or cmp_ratio > 1,
        f"expected cmp_ratio > 1 with cmp_kv, found {cmp_ratio}: pass 4 or 128",
    )
    _expect(
        ori_indices is None or cmp_kv is None,
        "expected ori_indices without cmp_kv, found both: listed slots exist for window-only "
        "layers",
    )
