"""Device bytes of a serving configuration, from the code that allocates, on the meta device."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from dsacp.app.doctor.machine import Finding
from dsacp.core import DraftCapacity, install_hint
from dsacp.drafting_cache import GroupSpec, storage_bytes
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import SasSpec

BLOCK_SIZE = 128
ROTARY_DIM = 64
WINDOW = 128


def memory_findings(
    capacity: DraftCapacity,
    on_ascend: DraftCapacity,
    model: Mapping[str, Any],
    max_model_len: int | None,
    *,
    dspark: bool = False,
    slot_width: int = 2,
    captures: bool = True,
) -> Iterator[Finding]:
    """Say what the window group of draft layers holds on one rank, by host.

    Args:
        capacity: bounds of dsacp's own builder.
        on_ascend: bounds of the builder in vllm-ascend.
        model: the model's ``config.json``.
        max_model_len: longest request, None where not said: block tables are then not counted.
        dspark: whether the drafter drafts a whole block at once.
        slot_width: 2 on A2 and A3, 1 on A5.
        captures: whether captured sizes were said.
    """
    unsaid = {
        "block tables (--max-model-len)": max_model_len is not None,
        "captured batches (--capture-sizes)": captures,
        "further RoPE configurations (--model-config)": bool(model),
    }
    left = [name for name, said in unsaid.items() if not said]
    tables = f"; not counted: {', '.join(left)}" if left else ""
    if importlib.util.find_spec("dsacp.vllm") is None:
        hint = install_hint("dsacp-vllm")
        yield Finding("note", f"memory on vllm-ascend: to have it counted, run {hint}")
    else:
        drafts, target = ascend_bytes(
            on_ascend, model, max_model_len, dspark=dspark, slot_width=slot_width
        )
        yield Finding(
            "ok",
            f"memory on vllm-ascend, a rank: {_kib(drafts)} for the draft layers' group, "
            f"{_kib(target)} for each other group{tables}",
        )
    own = builder_bytes(capacity, model)
    yield Finding("ok", f"memory of dsacp's own builder, a rank and window group: {_kib(own)}")


def ascend_bytes(
    capacity: DraftCapacity,
    model: Mapping[str, Any],
    max_model_len: int | None,
    *,
    dspark: bool = False,
    slot_width: int = 2,
) -> tuple[int, int]:
    """Return the bytes of the draft layers' group and of a group of the target alone."""
    memory = importlib.import_module("dsacp.vllm.ascend.memory")
    columns = max(1, -(-(max_model_len or 0) // BLOCK_SIZE))
    dims = [_rotary_dim(model)] * _configs(model)
    window = int(model.get("sliding_window") or WINDOW)
    given = {"slot_width": slot_width, "window": window, "dspark": dspark}
    roles = memory.draft_roles(capacity.num_draft_tokens, dspark)
    drafts: int = memory.group_bytes(capacity, roles, dims, columns, **given)
    target: int = memory.group_bytes(capacity, memory.target_roles(), dims, columns, **given)
    return drafts, target


def builder_bytes(capacity: DraftCapacity, model: Mapping[str, Any] | None) -> int:
    """Return the bytes of ``DraftMetadataBuilder``'s storages for one window group."""
    rope, model = RopeRegistry(), model or {}
    for index in range(_configs(model)):
        rope.register(f"layer.{index}", RopeConfig(_rotary_dim(model), 1, 10000.0 + index))
    group = GroupSpec("window", BLOCK_SIZE, sas=SasSpec(num_heads=64))
    return storage_bytes(capacity, [group], rope, capacity.num_draft_tokens)


def _configs(model: Mapping[str, Any]) -> int:
    return 2 if model.get("compress_rope_theta") else 1


def _rotary_dim(model: Mapping[str, Any]) -> int:
    return int(model.get("qk_rope_head_dim", ROTARY_DIM))


def _kib(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"
