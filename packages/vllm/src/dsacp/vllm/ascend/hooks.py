"""What our builder stands on in an installed vllm-ascend; signatures and fields decide, no version.

Anything missing and anything new is a reason to stand aside: a field that we do not fill could be
one that the attention code has come to need.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from dsacp.vllm.ascend.bodies import changed_bodies
from dsacp.vllm.ascend.settings import remedy
from dsacp.vllm.hooks import guarded
from dsacp.vllm.settings import Blocker

METHODS = {
    "build": ("self", "common_prefix_len", "common_attn_metadata", "fast_build", "kwargs"),
    "build_for_drafting": ("self", "common_attn_metadata", "draft_index", "fast_build", "kwargs"),
    "build_for_graph_capture": ("self", "common_attn_metadata", "attn_state", "kwargs"),
    "_build_sas_metadata": (
        "self", "num_heads", "query_start_loc", "seq_lens", "seq_lens_q", "max_query_len",
        "max_seq_lens", "index_topk", "num_reqs", "has_prefill", "cu_cmp_seqlen_list",
    ),
    "_build_qli_metadata": ("self", "query_start_loc", "seq_lens", "seq_lens_q", "num_reqs"),
    "_get_cmp_seqlens_for_metadata": ("self", "has_prefill"),
    "_num_compressor_metadata_rows": ("self", "common_attn_metadata"),
}  # fmt: skip
"""Parameters of every method that is replaced or called, in order."""

REQUEST_FIELDS = frozenset({
    "input_positions", "block_table", "seq_lens", "slot_mapping", "block_size", "query_start_loc",
    "cp_metadata", "cache_group_key", "num_compressed_tokens", "sin", "cos", "full_compress_sin",
    "full_compress_cos", "start_pos", "num_reqs_actual", "sas_metadata", "qli_metadata",
    "cu_cmp_seqlen_list", "attn_mask", "ori_win_left", "ori_win_right", "dspark_swa_indices",
})  # fmt: skip
SHARD_FIELDS = frozenset({
    "local_query_start_loc", "local_seq_lens", "local_start", "local_end", "tokens_per_rank",
    "num_tokens_pad", "local_sin", "local_cos",
})  # fmt: skip
STEP_FIELDS = frozenset({
    "num_actual_tokens", "query_start_loc", "seq_lens", "block_tables", "sin", "cos",
    "num_decodes", "num_decode_tokens", "num_prefills", "num_input_tokens", "head_dim",
    "attn_mask", "attn_state", "req_metadata", "reshape_cache_event", "hadamard", "start_pos",
})  # fmt: skip
OPTIONAL = frozenset({"cache_group_key"})
"""Fields that a supported version may lack (0.25.1rc1 has no cache_group_key)."""

ATTRIBUTES = (
    "kv_cache_spec", "metadata_cls", "vllm_config", "model_config", "device", "compressor_ratio",
    "speculative_config", "decode_threshold", "slot_mapping_shape", "req_sas_metadata",
    "req_qli_metadata",
)  # fmt: skip
"""What a builder's ``__init__`` sets and our code reads."""

ROPE_PROXY = ("self", "data_map", "is_cos")
ADVANCE = "attn_update_stack_num_spec_norm"
"""The proposer's step from one draft pass to the next, by which its class is known."""
HAND_OVER = "set_attn"
"""The method in which a speculator makes the draft layers' builders."""

COMMON_FIELDS = (
    "query_start_loc", "query_start_loc_cpu", "seq_lens", "num_reqs", "num_actual_tokens",
    "max_query_len", "block_table_tensor", "slot_mapping", "positions", "num_input_tokens",
    "attn_state", "causal",
)  # fmt: skip


NAMES = (
    "AscendDSACPMetadataBuilder", "AscendDSACPImpl", "AscendDSAMetadata", "AscendDSAReqMetadata",
    "DSACPMetadata", "AscendCommonAttentionMetadata", "DeviceOperator",
    "split_decodes_and_prefills", "get_tp_group", "get_full_cos_and_sin_dsa",
)  # fmt: skip
"""What the builder's module must hold."""


def missing_hooks(dsa_cp: Any, rope: Any) -> Iterator[Blocker]:
    """Yield every way in which the installed modules are not what our builder was made for.

    One that is missing hides no other: each part is looked at by itself.

    Args:
        dsa_cp: ``vllm_ascend.attention.context_parallel.dsa_cp``.
        rope: ``vllm_ascend.ops.rope_dsv4``.
    """
    if lost := [name for name in NAMES if not hasattr(dsa_cp, name)]:
        yield Blocker(f"{dsa_cp.__name__} without {', '.join(lost)}", remedy())
    parts: list[Callable[[], Iterable[Blocker]]] = [partial(_rope, rope)]
    for name, check in _CHECKS.items():
        if name not in lost:
            parts.append(partial(check, getattr(dsa_cp, name)))
    for part in parts:
        yield from guarded(part, remedy)


def _builder(builder: Any) -> Iterator[Blocker]:
    yield from _attributes(builder)
    unfit = dict(_methods(builder))
    yield from unfit.values()
    # a method with other parameters has another body too, which says nothing new
    yield from changed_bodies(builder, remedy(), except_for=unfit)


def _methods(builder: Any) -> Iterator[tuple[str, Blocker]]:
    for name, wanted in METHODS.items():
        method = getattr(builder, name, None)
        if method is None:
            yield name, Blocker(f"no {builder.__name__}.{name}", remedy())
            continue
        found = tuple(inspect.signature(method).parameters)
        if found != wanted:
            yield name, Blocker(f"{builder.__name__}.{name}({', '.join(found)})", remedy())


def _common(owner: Any) -> Iterator[Blocker]:
    have = {field.name for field in dataclasses.fields(owner)}
    if lost := [name for name in COMMON_FIELDS if name not in have]:
        yield Blocker(f"common attention metadata without {', '.join(lost)}", remedy())


def _fields(wanted: frozenset[str], owner: Any) -> Iterator[Blocker]:
    have = {field.name for field in dataclasses.fields(owner)}
    if lost := sorted(wanted - OPTIONAL - have):
        yield Blocker(f"{owner.__name__} without {', '.join(lost)}", remedy())
    if new := sorted(have - wanted):
        yield Blocker(f"{owner.__name__} with the unknown fields {', '.join(new)}", remedy())


def _split(split: Any) -> Iterator[Blocker]:
    names = inspect.signature(split).parameters
    if not {"decode_threshold", "treat_short_extends_as_decodes"} <= set(names):
        yield Blocker(f"split_decodes_and_prefills({', '.join(names)})", remedy())


def _full_rope(found: Any) -> Iterator[Blocker]:
    yield from parameters("get_full_cos_and_sin_dsa", found, ("group_name",))


def _slot_format(device: Any) -> Iterator[Blocker]:
    formatter = getattr(device, "format_dsa_slot_mapping", None)
    yield from parameters("format_dsa_slot_mapping", formatter, ("slot_mapping", "block_size"))


def parameters(name: str, found: Any, wanted: tuple[str, ...]) -> Iterator[Blocker]:
    """Yield a blocker if a callable is missing or has other parameters than the known ones."""
    have = None if found is None else tuple(inspect.signature(found).parameters)
    if have is None:
        yield Blocker(f"no {name}", remedy())
    elif have != wanted:
        yield Blocker(f"{name}({', '.join(have)})", remedy())


def _attributes(builder: Any) -> Iterator[Blocker]:
    """Look for what a builder's ``__init__`` sets and we read, without making a builder."""
    named = set(inspect.unwrap(builder.__init__).__code__.co_names)
    if lost := [name for name in ATTRIBUTES if name not in named]:
        yield Blocker(f"{builder.__name__} that never sets {', '.join(lost)}", remedy())


def _rope(rope: Any) -> Iterator[Blocker]:
    state = getattr(rope, "_ROPE_STATE", None)
    for name in ("full_rope_cache", "registry_summary", "layer_info"):
        if not hasattr(state, name):
            yield Blocker(f"RoPE state without {name}", remedy())
    proxy = getattr(rope, "RopeDataProxy", None)
    pad_to, init = getattr(proxy, "pad_to", None), getattr(proxy, "__init__", None)
    yield from parameters("RopeDataProxy.pad_to", pad_to, ("self", "target_len", "dim"))
    yield from parameters("RopeDataProxy", init, ROPE_PROXY)


def drafting_hooks(proposer: Any, speculator: Any) -> Iterator[Blocker]:
    """Yield every way in which what drives draft steps is not what our builder was made for.

    Args:
        proposer: runner v1's module of proposers, None where it is not loaded.
        speculator: runner v2's module of speculators, None where it is not loaded.
    """
    if proposer is not None:
        reads = (ADVANCE, "draft_attn_groups", "initialize_attn_backend")
        yield from _driver(proposer, ADVANCE, reads)
    if speculator is not None:
        yield from _driver(speculator, HAND_OVER, ("attn_groups", "target_attn_groups"))


def _driver(module: Any, method: str, reads: tuple[str, ...]) -> Iterator[Blocker]:
    """Look for one class of a module that has the method, and for the names that it stands on."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    found = [cls for cls in classes if method in vars(cls) and cls.__module__ == module.__name__]
    if not found:
        yield Blocker(f"no class with {method} in {module.__name__}", remedy())
    for cls in found:
        known = {name for base in cls.__mro__ for name in vars(base)}
        for base in cls.__mro__:
            for value in vars(base).values():
                known.update(getattr(getattr(value, "__code__", None), "co_names", ()))
        if lost := [name for name in reads if name not in known]:
            yield Blocker(f"{cls.__name__} without {', '.join(lost)}", remedy())
    group = getattr(module, "AttentionGroup", None)
    if group is not None and "metadata_builders" not in {f.name for f in dataclasses.fields(group)}:
        yield Blocker("an AttentionGroup without metadata_builders", remedy())


_CHECKS: dict[str, Callable[[Any], Iterable[Blocker]]] = {
    "AscendDSACPMetadataBuilder": _builder,
    "AscendDSAReqMetadata": partial(_fields, REQUEST_FIELDS),
    "DSACPMetadata": partial(_fields, SHARD_FIELDS),
    "AscendDSAMetadata": partial(_fields, STEP_FIELDS),
    "AscendCommonAttentionMetadata": _common,
    "split_decodes_and_prefills": _split,
    "get_full_cos_and_sin_dsa": _full_rope,
    "DeviceOperator": _slot_format,
}
"""What is looked at in each name that is there."""
