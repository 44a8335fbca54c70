"""Triton kernel of sparse attention: one program a (token, tile of heads), online softmax."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.covered_rows.triton import RECORDS, row_covered
from dsacp.kernels.programs import launch_parts
from dsacp.kernels.sparse_attention.triton_tiles import absorb_chosen, absorb_listed, absorb_paged
from dsacp.kernels.triton_integers import power_shift
from dsacp.kernels.triton_requests import find_owner, request_tiles

# tl.dot needs tiles of at least 16; fewer heads are padded with masked rows.
MIN_TILE = 16
WIDEST = 1 << 30
"""Window bound past any KV length, to which a position can be added in int32."""


@triton.jit(
    do_not_specialize=[
        "block_table", "table_stride", "query_start_loc", "seq_lens", "cmp_table",
        "cmp_table_stride", "words", "num_reqs", "columns", "num_blocks", "cmp_columns",
        "cmp_blocks", "chosen", "chosen_stride", "num_chosen", "listed", "listed_stride",
        "num_listed", "num_records", "window_left", "window_right", "first_token",
    ]
)  # fmt: skip
def _sparse_attention_kernel(
    q, q_stride_t, q_stride_h,
    kv, page_stride, num_blocks,
    block_table, table_stride, columns,
    query_start_loc, seq_lens, num_reqs,
    sinks,
    out, out_stride_t, out_stride_h,
    cmp_kv, cmp_page_stride, cmp_blocks,
    cmp_table, cmp_table_stride, cmp_columns,
    chosen, chosen_stride, num_chosen,
    listed, listed_stride, num_listed,
    words, num_records,
    scale, window_left, window_right, first_token,
    HEADS: tl.constexpr, DIM: tl.constexpr,
    SIZE: tl.constexpr, SHIFT: tl.constexpr,
    CMP_SIZE: tl.constexpr, CMP_SHIFT: tl.constexpr, RATIO: tl.constexpr,
    HAS_CMP: tl.constexpr, HAS_CHOSEN: tl.constexpr, HAS_LISTED: tl.constexpr,
    HAS_PLAN: tl.constexpr, RECORD_SIZE: tl.constexpr, PAIRED: tl.constexpr,
    READS_CORE0_START: tl.constexpr, RECORD_SLOTS: tl.constexpr,
    BLOCK_REQS: tl.constexpr, MORE_REQS: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_LISTED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    token = first_token + tl.program_id(0)
    owner = find_owner(query_start_loc, token, num_reqs, BLOCK_REQS, MORE_REQS)
    write = (owner < num_reqs) & (token >= tl.load(query_start_loc))
    request = tl.where(write, owner, 0)
    begin = tl.load(query_start_loc + request)
    length = tl.load(seq_lens + request)
    position = length - (tl.load(query_start_loc + request + 1) - begin) + token - begin
    if HAS_PLAN:
        taken = row_covered(
            words, request, token - begin, num_records, RECORD_SIZE, PAIRED, READS_CORE0_START,
            RECORD_SLOTS,
        )  # fmt: skip
        write = write & (taken > 0)

    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, DIM)
    row = token.to(tl.int64)
    # A transposed view's heads may lie 2 ** 31 elements and more apart.
    far_head = head[:, None].to(tl.int64)
    query = tl.load(
        q + row * q_stride_t + far_head * q_stride_h + dim[None, :],
        mask=(head < HEADS)[:, None],
        other=0.0,
    )
    sink = tl.load(sinks + head, mask=head < HEADS, other=0.0).to(tl.float32)
    # A sink of -inf adds nothing; a finite peak keeps the first exponentials defined.
    peak = tl.maximum(sink, -1.0e30)
    total = tl.exp(sink - peak)
    mixed = tl.zeros([BLOCK_HEADS, DIM], dtype=tl.float32)

    # Rows that are not written see no key: their loops do not run, and nothing is branched over.
    if HAS_LISTED:
        rank = tl.arange(0, BLOCK_LISTED)
        slots = listed + row * listed_stride
        ends = tl.where(
            tl.load(slots + rank, mask=rank < num_listed, other=-1) < 0, rank, num_listed
        )
        count = tl.where(write, tl.minimum(tl.min(ends, 0), length), 0)
        peak, total, mixed = absorb_listed(
            query, kv, page_stride, num_blocks, slots, count, scale, peak, total, mixed,
            SIZE, SHIFT, BLOCK_KEYS, DIM, WIDEN,
        )  # fmt: skip
    else:
        low = tl.maximum(position - window_left, 0)
        high = tl.minimum(position + window_right, length - 1)
        count = tl.where(write, tl.maximum(high - low + 1, 0), 0)
        table = block_table + request.to(tl.int64) * table_stride
        peak, total, mixed = absorb_paged(
            query, kv, page_stride, num_blocks, table, columns, low, count, scale,
            peak, total, mixed, SIZE, SHIFT, BLOCK_KEYS, DIM, WIDEN,
        )  # fmt: skip
        if HAS_CMP:
            limit = tl.maximum(position + 1, 0) // RATIO
            groups = tl.where(count > 0, limit, 0)
            table = cmp_table + request.to(tl.int64) * cmp_table_stride
            if HAS_CHOSEN:
                peak, total, mixed = absorb_chosen(
                    query, cmp_kv, cmp_page_stride, cmp_blocks, table, cmp_columns,
                    chosen + row * chosen_stride, tl.minimum(groups, num_chosen), limit, scale,
                    peak, total, mixed, CMP_SIZE, CMP_SHIFT, BLOCK_KEYS, DIM, WIDEN,
                )  # fmt: skip
            else:
                peak, total, mixed = absorb_paged(
                    query, cmp_kv, cmp_page_stride, cmp_blocks, table, cmp_columns, 0, groups,
                    scale, peak, total, mixed, CMP_SIZE, CMP_SHIFT, BLOCK_KEYS, DIM, WIDEN,
                )  # fmt: skip

    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    target = out + row * out_stride_t + far_head * out_stride_h + dim[None, :]
    tl.store(target, mixed.to(out.dtype.element_ty), mask=(head < HEADS)[:, None] & write)


def _check(q: Tensor) -> None:
    dim = q.shape[2]
    if dim < MIN_TILE or dim & (dim - 1):
        raise LayoutError(
            f"expected a power-of-two head size of at least {MIN_TILE} for Triton, found {dim}: "
            "use impl='reference'"
        )
    if q.dtype not in {torch.float16, torch.bfloat16, torch.float32}:
        raise LayoutError(
            f"expected fp16, bf16 or fp32 for Triton, found {q.dtype}: use impl='reference'"
        )


def tile_sizes(heads: int, dim: int, element_size: int, device_type: str) -> tuple[int, int]:
    """Return (heads, keys) of one tile: what fits registers, or an NPU core's local memory."""
    wide = dim * element_size >= 1024
    if device_type == "npu" or (wide and element_size == 4):
        return MIN_TILE, MIN_TILE if wide else 32
    block_heads = min(max(triton.next_power_of_2(heads), MIN_TILE), 32)
    return block_heads, 32 if wide else 64


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
    """Launch the kernel; same contract as the reference, accumulating in fp32."""
    _check(q)
    num_tokens, heads, dim = q.shape
    if q.numel() == 0 or seq_lens.numel() == 0:
        return
    cmp_cache = kv if cmp_kv is None else cmp_kv
    cmp_table = block_table if cmp_block_table is None else cmp_block_table
    chosen = block_table if cmp_indices is None else cmp_indices
    listed = block_table if ori_indices is None else ori_indices
    words = block_table if sas_metadata is None else sas_metadata
    num_listed = 0 if ori_indices is None else listed.shape[-1]
    block_heads, block_keys = tile_sizes(heads, dim, q.element_size(), q.device.type)
    head_tiles = triton.cdiv(heads, block_heads)
    for first, tokens in launch_parts(num_tokens, head_tiles, q.device.type):
        _sparse_attention_kernel[(tokens, head_tiles)](
            q, q.stride(0), q.stride(1),
            kv, kv.stride(0), kv.shape[0],
            block_table, block_table.stride(0), block_table.shape[1],
            query_start_loc, seq_lens, seq_lens.numel(),
            sinks,
            out, out.stride(0), out.stride(1),
            cmp_cache, cmp_cache.stride(0), cmp_cache.shape[0],
            cmp_table, cmp_table.stride(0), cmp_table.shape[1],
            chosen, chosen.stride(0), 0 if cmp_indices is None else chosen.shape[-1],
            listed, listed.stride(0), num_listed,
            words, num_records,
            scale, min(window_left, WIDEST), min(window_right, WIDEST), first,
            HEADS=heads, DIM=dim,
            SIZE=kv.shape[1], SHIFT=power_shift(kv.shape[1]),
            CMP_SIZE=cmp_cache.shape[1], CMP_SHIFT=power_shift(cmp_cache.shape[1]), RATIO=cmp_ratio,
            HAS_CMP=cmp_kv is not None, HAS_CHOSEN=cmp_indices is not None,
            HAS_LISTED=ori_indices is not None,
            HAS_PLAN=sas_metadata is not None, RECORD_SIZE=max(record_size, 1), PAIRED=paired,
            READS_CORE0_START=reads_core0_start, RECORD_SLOTS=RECORDS,
            **request_tiles(seq_lens.numel()),
            BLOCK_HEADS=block_heads, BLOCK_KEYS=block_keys,
            BLOCK_LISTED=triton.next_power_of_2(max(num_listed, 1)),
            # CPU tensors mean Triton's interpreter, whose dot multiplies the bits of bf16.
            WIDEN=q.device.type == "cpu",
        )  # fmt: skip
