"""Sparse attention with shared keys and values over paged caches (upstream U16-U18)."""

import torch
from torch import Tensor

from dsacp.kernels.covered_rows import PlanLayout, check_plan_words, plan_layout
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.sparse_attention import checks, reference

KERNEL = Kernel(
    "sparse_attention",
    reference.sparse_attention,
    "dsacp.kernels.sparse_attention.triton:sparse_attention",
)


@kernel_op("dsacp::sparse_attention", mutates_args=("out",))
def _sparse_attention_op(
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
    impl: str,
) -> None:
    KERNEL.select(q.device, impl)(
        q, kv, block_table, query_start_loc, seq_lens, sinks, out, cmp_kv, cmp_block_table,
        cmp_indices, ori_indices, sas_metadata, scale, window_left, window_right, cmp_ratio,
        record_size, num_records, paired, reads_core0_start,
    )  # fmt: skip


def sparse_attention(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor,
    *,
    scale: float,
    window_left: int,
    window_right: int = 0,
    cmp_ratio: int = 1,
    cmp_kv: Tensor | None = None,
    cmp_block_table: Tensor | None = None,
    cmp_indices: Tensor | None = None,
    ori_indices: Tensor | None = None,
    sas_metadata: Tensor | None = None,
    num_cores: int = 0,
    device_family: str = "a2",
    out: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Attend each query token to its window, its compressed keys and a sink.

    Query token i of request b sits at ``p = seq_lens[b] - q_b + i`` and sees raw keys
    ``max(p - window_left, 0) .. min(p + window_right, seq_lens[b] - 1)``, then of the
    ``C = (p + 1) // cmp_ratio`` complete groups either all of them, or the first
    ``min(K, C)`` entries of ``cmp_indices``. A row that sees no key is zero. Entries outside
    a block table, pages outside a cache, and indices outside ``0..C-1`` count as absent keys.

    Args:
        q: [T, N, D], any float dtype; float64 accumulates in float64, all others in float32.
        kv: [blocks, block size, 1, D] of q's dtype, keys and values; any stride of the first axis.
        block_table: int32 [>= B, M].
        query_start_loc: int32 [B+1].
        seq_lens: int32 [B], KV lengths including this step's queries; 0 marks padding.
        sinks: float [N], one raw logit per head.
        scale: factor of the logits.
        window_left: keys before the query's own, W-1 for a window of W.
        window_right: keys after it.
        cmp_ratio: raw tokens a compressed entry stands for.
        cmp_kv: compressed cache [blocks', block size', 1, D].
        cmp_block_table: int32 [>= B, M'].
        cmp_indices: int32 [T, 1, K], compressed positions, valid ones first.
        ori_indices: int32 [T, 1, Wd], absolute flat slots that replace window, block table and
            causality; the leading non-negative ones count, at most ``seq_lens[b]``.
        sas_metadata: int32 [1024] work plan; rows that it does not cover are not written.
        num_cores: physical cores of the launch that reads the plan; needed with it.
        device_family: "a2" or "a5", how the plan is read.
        out: [T, N, D] to write in place; NaN-filled and allocated when None.
        impl: forces "reference" or "triton".

    Returns:
        ``out``. Rows of no request, and rows outside the plan, keep what it held.

    Raises:
        LayoutError: shapes, dtypes or the chosen mode contradict each other.
    """
    checks.check_tensors(
        q=q,
        kv=kv,
        block_table=block_table,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        sinks=sinks,
        cmp_kv=cmp_kv,
        cmp_block_table=cmp_block_table,
        cmp_indices=cmp_indices,
        ori_indices=ori_indices,
        sas_metadata=sas_metadata,
        out=out,
    )
    checks.check_query(q, query_start_loc, seq_lens, sinks, out)
    checks.check_cache("kv", kv, block_table, q, seq_lens.numel())
    checks.check_mode(
        window_left, window_right, cmp_ratio, cmp_kv, cmp_block_table, cmp_indices, ori_indices
    )
    if cmp_kv is not None and cmp_block_table is not None:
        checks.check_cache("cmp_kv", cmp_kv, cmp_block_table, q, seq_lens.numel())
    for name, indices in (("cmp_indices", cmp_indices), ("ori_indices", ori_indices)):
        if indices is not None:
            checks.check_indices(name, indices, q.shape[0])
    layout = PlanLayout(0, 0, False, False)
    if sas_metadata is not None:
        layout = plan_layout(device_family, q.shape[1], num_cores)
        check_plan_words(sas_metadata, layout)
    if out is None:
        out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
    _sparse_attention_op(
        q, kv, block_table, query_start_loc, seq_lens, sinks, out, cmp_kv, cmp_block_table,
        cmp_indices, ori_indices, sas_metadata, scale, window_left, window_right, cmp_ratio,
        layout.record_size, layout.num_records, layout.paired, layout.reads_core0_start, impl,
    )  # fmt: skip
    return out
