"""What a replay would allocate, known before it does."""

import os
from collections.abc import Mapping, Sequence

import torch

from dsacp.app.model.caches import draft_caches, target_caches
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.groups import AttentionShape, GroupPlan, kv_groups
from dsacp.app.replay.settings import Limits, ReplayConfig, SettingsError
from dsacp.app.scheduling import KvGroup
from dsacp.app.traces.read import TraceRequest
from dsacp.core import DraftCapacity
from dsacp.drafting_cache import CACHED_SHAPES, storage_bytes
from dsacp.graph import tensors_of

EXECUTORS = 2
LISTED = 40
"""Bytes of a number in a Python list, which block pools and prompts are."""
TABLE_PEAK = 3
"""RoPE tables are computed from angles that take as much as cos and sin together at the most."""
SHAPE_BYTES = 4 * 1024
"""At most, of a shape of a batch that a builder remembers, a group and step; 1.5 to 2 KiB seen."""
META = torch.device("meta")


def check_memory(
    config: ReplayConfig,
    limits: Limits,
    capacity: DraftCapacity,
    model: ModelConfig | None,
    trace: Sequence[TraceRequest],
    ranks: int,
) -> None:
    """Refuse settings that need more than this machine has, instead of being killed halfway.

    Raises:
        SettingsError: with what is needed for what, and what there is.
    """
    parts = needed_bytes(limits, capacity, model, trace, ranks)
    needed, present = sum(parts.values()), _present(config.device)
    if present is not None and needed > present:
        shares = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())
        raise SettingsError(
            f"expected a replay that fits the {_gib(present)} of this machine's {config.device}, "
            f"found one of {_gib(needed)} ({shares}): lower --max-model-len, --kv-tokens, "
            "--max-num-seqs, --max-num-batched-tokens or --capture-sizes, or take shorter requests"
        )


def needed_bytes(
    limits: Limits,
    capacity: DraftCapacity,
    model: ModelConfig | None,
    trace: Sequence[TraceRequest],
    ranks: int,
) -> Mapping[str, int]:
    """Return bytes by purpose; buffers and caches are counted on the meta device."""
    shape = AttentionShape() if model is None else model.attention
    plan = shape.plan(128)  # buffers do not depend on the table's length
    groups = (*plan.target_groups, *plan.draft_groups)
    pools = kv_groups(groups, limits.kv_tokens, limits.max_num_seqs)
    configs = (*plan.target_rope.configs(), *plan.draft_rope.configs())
    rows = capacity.max_reqs
    columns = sum(pool.blocks_for(limits.max_model_len) for pool in pools)
    prompts = sum(request.input_length for request in trace) if model is not None else 0
    return {
        "RoPE tables": TABLE_PEAK * 4 * limits.max_model_len * shape.rotary_dim * len(configs),
        "block tables": 4 * rows * columns,
        "block pools and prompts": LISTED * (sum(pool.num_blocks for pool in pools) + prompts),
        "buffers": EXECUTORS * ranks * _buffers(capacity, plan),
        "shapes remembered": EXECUTORS * ranks * _shapes(limits, plan, capacity.num_draft_tokens),
        "KV caches": 0 if model is None else EXECUTORS * ranks * _caches(model, pools),
    }


def _buffers(capacity: DraftCapacity, plan: GroupPlan) -> int:
    target = storage_bytes(capacity, plan.target_groups, plan.target_rope, 1, 0)
    steps = capacity.num_draft_tokens
    return target + storage_bytes(capacity, plan.draft_groups, plan.draft_rope, steps, 0)


def _shapes(limits: Limits, plan: GroupPlan, draft_steps: int) -> int:
    """Bytes of one rank's target and drafter when both remember as many shapes as there can be."""
    possible = min(CACHED_SHAPES, limits.max_num_seqs * limits.max_num_batched_tokens)
    parts = len(plan.target_groups) + draft_steps * len(plan.draft_groups)
    return possible * parts * SHAPE_BYTES


def _caches(model: ModelConfig, pools: Sequence[KvGroup]) -> int:
    blocks = {pool.name: pool.num_blocks for pool in pools}
    caches = (
        target_caches(model, blocks, torch.float64, META),
        draft_caches(model, blocks, torch.float64, META),
    )
    return sum(tensor.nbytes for _, tensor in tensors_of(caches))


def _present(device: str) -> int | None:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
