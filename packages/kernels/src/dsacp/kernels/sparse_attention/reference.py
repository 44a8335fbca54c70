"""Sparse attention with shared keys and values, in torch (upstream U17, U18): the kernel's oracle.

Attention is batched over tokens: every token gathers at most its window plus its compressed keys.
"""

import torch
from torch import Tensor

from dsacp.kernels.covered_rows.reference import plan_mask, token_owner
from dsacp.kernels.sparse_attention.reference_keys import (
    Rows,
    Sources,
    gather_keys,
    longest_of,
    make_sources,
)

# Bounds the gathered keys of one batch of tokens, so that a long prefill fits in memory.
GATHER_ELEMENTS = 1 << 22


def _attend(q: Tensor, keys: Tensor, valid: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Softmax over the keys with a sink logit per head, accumulated in fp32 (fp64 for fp64)."""
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    kv = keys.to(wide)
    scores = torch.bmm(q.to(wide), kv.transpose(1, 2)) * scale
    scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
    sink = sinks.to(wide)[None, :]
    peak = torch.maximum(scores.amax(2), sink)
    # A row without keys and with a sink of -inf has no finite logit at all.
    peak = torch.where(peak == float("-inf"), 0, peak)
    weight = torch.exp(scores - peak[:, :, None])
    total = weight.sum(2) + torch.exp(sink - peak)
    # The kernels round the unnormalised weights to the cache's type before the second product.
    mixed = torch.bmm(weight.to(keys.dtype).to(wide), kv)
    return mixed / total[:, :, None]


def _run(
    q: Tensor, rows: Rows, src: Sources, sinks: Tensor, scale: float, out: Tensor, write: Tensor
) -> None:
    """Attend chunk by chunk and store the rows that ``write`` selects."""
    per_token = (src.window_width + src.cmp_width) * q.shape[2]
    step = max(GATHER_ELEMENTS // max(per_token, 1), 1)
    for begin in range(0, q.shape[0], step):
        chunk = slice(begin, begin + step)
        keys, valid, seen = gather_keys(rows.part(chunk), src, chunk)
        result = _attend(q[chunk], keys, valid, sinks, scale).to(out.dtype)
        result = torch.where(seen[:, None, None], result, 0)
        out[chunk].copy_(torch.where(write[chunk, None, None], result, out[chunk]))


def sparse_attention(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor,
    out: Tensor,
    cmp_kv: Tensor | None,
    cmp_block_table: Tensor | None,
    cmp_indices: Tensor | None,
    ori_indices: Tensor | None,
    sas_metadata: Tensor | None,
    scale: float,
    window_left: int,
    window_right: int,
    cmp_ratio: int,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
) -> None:
    """Write the attention output of every owned and covered row; see the package function."""
    if q.shape[0] == 0 or seq_lens.numel() == 0:
        return
    request, index, write = token_owner(query_start_loc, q.shape[0])
    if sas_metadata is not None:
        plan = (record_size, num_records, paired, reads_core0_start)
        write = write & plan_mask(sas_metadata, request, index, *plan)
    starts = query_start_loc.to(torch.int64)
    length = seq_lens.to(torch.int64)[request]
    rows = Rows(request, length - (starts[1:] - starts[:-1])[request] + index, length)
    src = make_sources(
        kv, block_table, window_left, window_right, ori_indices, cmp_kv, cmp_block_table,
        cmp_indices, cmp_ratio, longest_of(seq_lens),
    )  # fmt: skip
    _run(q, rows, src, sinks, scale, out, write)
