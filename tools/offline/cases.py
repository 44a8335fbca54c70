"""Every kernel at the shape of a real DeepSeek-V4 step: K=3, tp=8, 64 heads, head_dim 512."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsacp.core import DraftCapacity, TokenShard
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.kernels import (
    compressor_rows,
    covered_rows,
    dspark_indices,
    local_metadata,
    rope_gather,
    slot_mapping,
    sparse_attention,
)
from dsacp.kernels.sas_plan.triton import launch_rows
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import QliSpec, SasSpec

STARTS = torch.tensor([0, 4, 8, 12, 16], dtype=torch.int32)
LENS = torch.tensor([900, 57, 9, 4], dtype=torch.int32)
TABLE = torch.arange(4 * 64, dtype=torch.int32).view(4, 64)


def _builder(target: bool, policy: str, padding: str = "dummy", block_size: int = 64) -> None:
    groups = [GroupSpec("swa", block_size, sas=SasSpec(num_heads=64))]
    if target:
        c4 = SasSpec(num_heads=64, cmp_ratio=4, cmp_topk=512)
        groups += [
            GroupSpec("c4", 64, sas=c4, compress_ratio=4, compressor=True),
            GroupSpec("indexer", 64, qli=QliSpec(), compress_ratio=4, compressor=True),
        ]
    capacity = DraftCapacity.from_config(16, 512, 3, 8, (16, 32))
    rope = RopeRegistry()
    rope.register("attn", RopeConfig(64, 4096, 1e4), groups=("default", "c4"))
    builder = DraftMetadataBuilder(
        capacity,
        groups,
        rope,
        TokenShard(0, 8, 3),
        max_model_len=4096,
        num_steps=1 if target else 3,
        sas_policy=policy,  # type: ignore[arg-type]
        padding=padding,  # type: ignore[arg-type]
    )
    rows = capacity.max_reqs
    tables = {g.name: torch.zeros(rows, 96, dtype=torch.int32) for g in groups}
    builder.bind(tables)
    builder.build_all(DraftBatch(4, 16, STARTS, LENS, bucket=16))


def _attention(ratio: int, topk: int) -> None:
    q = torch.zeros(16, 64, 512, dtype=torch.bfloat16)
    kv = torch.zeros(64, 64, 1, 512, dtype=torch.bfloat16)
    compressed: dict[str, Tensor] = {}
    if ratio > 1:
        compressed = {"cmp_kv": kv, "cmp_block_table": TABLE}
    if topk:
        compressed["cmp_indices"] = torch.zeros(16, 1, topk, dtype=torch.int32)
    sparse_attention(
        q,
        kv,
        TABLE,
        STARTS,
        LENS,
        torch.zeros(64),
        scale=512**-0.5,
        window_left=127,
        cmp_ratio=ratio,
        sas_metadata=torch.zeros(1024, dtype=torch.int32),
        num_cores=24,
        **compressed,  # type: ignore[arg-type]
    )


def _odd_pages() -> None:
    """Chosen rows in pages of 5: Triton 3.6 and 3.7 lose a layout where such a page is selected."""
    q, kv = torch.zeros(16, 4, 16), torch.zeros(64, 3, 1, 16)
    chosen = torch.zeros(16, 1, 3, dtype=torch.int32)
    sparse_attention(
        q,
        kv,
        TABLE,
        STARTS,
        LENS,
        torch.zeros(4),
        scale=0.25,
        window_left=127,
        cmp_ratio=4,
        cmp_kv=torch.zeros(64, 5, 1, 16),
        cmp_block_table=TABLE,
        cmp_indices=chosen,
    )


def _small() -> None:
    positions = torch.arange(16, dtype=torch.int32)
    shard = TokenShard(16, 8, 3)
    local_metadata(STARTS, LENS, shard)
    out = torch.empty(16, dtype=torch.int32)
    slot_mapping(positions, positions >> 2, TABLE, 64, out)
    cos = torch.zeros(4096, 64)
    rope_gather(positions, cos, cos, torch.empty(16, 64), torch.empty(16, 64))
    words = torch.zeros(1024, dtype=torch.int32)
    covered_rows(words, STARTS, "a2", 64, 24)
    dspark_indices(
        STARTS, LENS, TABLE, window=128, num_draft_tokens=3, block_size=64, num_tokens=16
    )


def _compressor(starts: Tensor, positions: Tensor, table: Tensor, **options: Any) -> None:
    """Compressed rows with slots in both formats."""
    rope = torch.zeros(4096, 64)
    for slot_format in ("flat", "block_offset"):
        compressor_rows(starts, positions, table, rope, rope, slot_format=slot_format, **options)


def _sizes() -> None:
    """Cache blocks of 48 rows: what is shifted elsewhere is divided."""
    positions = torch.arange(16, dtype=torch.int32)
    for shape, fmt in (((16,), "flat"), ((16, 2), "block_offset")):
        out = torch.empty(shape, dtype=torch.int32)
        slot_mapping(positions, positions >> 2, TABLE, 48, out, fmt)  # type: ignore[arg-type]
    _compressor(STARTS, LENS, TABLE, ratio=3, block_size=48, num_rows=9)
    dspark_indices(
        STARTS, LENS, TABLE, window=128, num_draft_tokens=3, block_size=48, num_tokens=16
    )


def _requests(count: int) -> None:
    """Kernels that look at all requests of a batch."""
    starts = torch.arange(count + 1, dtype=torch.int32)
    lens = torch.full((count,), 900, dtype=torch.int32)
    table = torch.zeros(count, 8, dtype=torch.int32)
    words = torch.zeros(1024, dtype=torch.int32)
    covered_rows(words, starts, "a5", 128, 24, num_tokens=count)
    _compressor(starts, lens, table, ratio=4, block_size=128, num_rows=count, seq_lens=lens)
    dspark_indices(
        starts, lens, table, window=128, num_draft_tokens=3, block_size=128, num_tokens=count
    )
    q = torch.zeros(count, 64, 512, dtype=torch.bfloat16)
    kv = torch.zeros(8, 128, 1, 512, dtype=torch.bfloat16)
    sinks, scale = torch.zeros(64), 512**-0.5
    sparse_attention(q, kv, table, starts, lens, sinks, scale=scale, window_left=127)


def _plan() -> None:
    """One plan with its numbers as launch arguments; `target` has the table on the device."""
    row = SasSpec(num_heads=64).plan_row(0, 0, 0, 4)
    launch_rows(STARTS, LENS, torch.empty(1024, dtype=torch.int32), [list(row)])


CASES: dict[str, Callable[[], None]] = {
    "draft": lambda: _builder(target=False, policy="upstream"),
    "target": lambda: _builder(target=True, policy="balanced"),
    "window": lambda: _attention(1, 0),
    "topk": lambda: _attention(4, 512),
    "c128": lambda: _attention(128, 0),
    "odd-pages": _odd_pages,
    "small": _small,
    "plan": _plan,
}
NPU_CASES: dict[str, Callable[[], None]] = {
    # 48 does not shift, so that every quotient is one of the corrected ones
    "repeat": lambda: _builder(target=False, policy="upstream", padding="repeat", block_size=128),
    "repeat-48": lambda: _builder(target=False, policy="upstream", padding="repeat", block_size=48),
    "sizes": _sizes,
    **{f"requests-{count}": partial(_requests, count) for count in (300, 513, 1025)},
}
"""What an NPU's local memory and its vectors bound, and a GPU's do not."""
