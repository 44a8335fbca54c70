"""Every kernel at the shape of a real DeepSeek-V4 step: K=3, tp=8, 64 heads, head_dim 512."""

from collections.abc import Callable

import torch
from torch import Tensor

from dsacp.core import DraftCapacity, TokenShard
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec
from dsacp.kernels import (
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


def _builder(target: bool, policy: str) -> None:
    groups = [GroupSpec("swa", 64, sas=SasSpec(num_heads=64))]
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
    )
    rows = capacity.max_reqs
    tables = {g.name: torch.zeros(rows, 64, dtype=torch.int32) for g in groups}
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
    "small": _small,
    "plan": _plan,
}
