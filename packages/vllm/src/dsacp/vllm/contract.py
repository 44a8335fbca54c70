"""What the plug-in replaces, calls and reads in vLLM 0.32; each part is checked, none assumed."""

from collections.abc import Iterator
from typing import Any

from dsacp.vllm.field_map import FROM_BUILDER, FROM_STOCK
from dsacp.vllm.hooks import (
    Hook,
    check_fields,
    check_flag,
    check_hooks,
    guarded,
    own_method,
    remedy,
)
from dsacp.vllm.settings import Blocker

COMMON_FIELDS = (
    "query_start_loc", "seq_lens", "num_reqs", "num_actual_tokens", "block_table_tensor",
    "slot_mapping", "_token_to_req_indices_cache", "_num_computed_tokens_cache",
)  # fmt: skip
KERNEL_ARGUMENTS = (
    "swa_indices", "swa_lens", "window_size", "index_width", "left_visible", "right_visible",
    "query_start_loc", "seq_lens", "token_to_req_indices", "is_valid_token", "block_table",
    "block_size", "replay_start",
)  # fmt: skip
ATTENTION_OPERATOR = ("flash_mla_with_kvcache_cpu", 10)
"""Name and number of arguments of the operator that a token-sharded layer calls."""


def builder_hooks(builder: Any, base: Any = object) -> list[Hook]:
    """List the methods of the stock window builder that ours replaces or calls.

    Args:
        builder: the stock builder class of window metadata.
        base: the abstract builder, whose stubs count as absent where we call the method.
    """
    name = "window builder"
    update = "update_draft_decode_metadata"
    batch = ("self", "common_prefix_len", "common_attn_metadata")
    return [
        Hook(
            f"{name} build",
            own_method(builder, "build", base),
            ("fast_build", "replay_start"),
            batch,
        ),
        Hook(f"{name} {update}", own_method(builder, update, base), (), ("self", "metadata")),
        *(
            Hook(f"{name} {method}", getattr(builder, method, None), parameters)
            for method, parameters in (
                ("build_for_drafting", ("common_attn_metadata", "draft_index")),
                ("build_for_cudagraph_capture", ("common_attn_metadata",)),
                ("update_block_table", ("metadata", "blk_table", "slot_mapping")),
            )
        ),
    ]


def kernel_hooks(swa: Any) -> list[Hook]:
    """List the launchers that compute the rank's rows; arguments go to them by position."""
    return [
        Hook(
            "compute_token_to_req_indices",
            getattr(swa, "compute_token_to_req_indices", None),
            leading=("query_start_loc", "out", "num_mapped_tokens", "num_tokens"),
        ),
        Hook(
            "_COMPUTE_SWA_INDICES_AND_LENS_KERNEL",
            getattr(swa, "_COMPUTE_SWA_INDICES_AND_LENS_KERNEL", None),
            ("num_tokens", "token_offset"),
            KERNEL_ARGUMENTS,
        ),
    ]


def attention_hooks(attention: Any) -> list[Hook]:
    """List the methods of the CPU attention class that ours stand around."""
    return [
        Hook(
            "CPU attention forward_mqa",
            getattr(attention, "forward_mqa", None),
            leading=("self", "q", "kv", "positions", "output"),
        ),
        Hook(
            "CPU attention process_weights_after_loading",
            getattr(attention, "process_weights_after_loading", None),
            leading=("self",),
        ),
    ]


def check_operators() -> Iterator[Blocker]:
    """Check the operator that a token-sharded draft layer calls on a CPU."""
    yield from guarded(_operator)


def check_contract() -> Iterator[Blocker]:
    """Check everything that we stand on against the installed vLLM, whatever it raises."""
    for part in (_builder, _kernels, _metadata, _attention):
        yield from guarded(part)


def _operator() -> Iterator[Blocker]:
    import torch

    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    name, expected = ATTENTION_OPERATOR
    operator = getattr(torch.ops._C, name, None)
    if operator is None:
        yield Blocker(
            f"no operator {name}",
            "use a CPU that vLLM has it for, or the tiny model of dsacp-vllm-cpu-kit",
        )
    elif (found := len(operator.default._schema.arguments)) != expected:
        yield Blocker(f"{found} arguments of {name}, not {expected}", remedy())


def _builder() -> Iterator[Blocker]:
    from vllm.v1.attention.backend import AttentionMetadataBuilder
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    stock = swa.DeepseekSparseSWABackend.get_builder_cls()
    yield from check_hooks(builder_hooks(stock, AttentionMetadataBuilder))
    yield from check_flag(stock, "supports_draft_decode_metadata_update")


def _kernels() -> Iterator[Blocker]:
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    yield from check_hooks(kernel_hooks(swa))


def _metadata() -> Iterator[Blocker]:
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    fields = [*FROM_BUILDER, *FROM_STOCK, "block_size"]
    yield from check_fields(swa.DeepseekSparseSWAMetadata, fields)
    yield from check_fields(CommonAttentionMetadata, COMMON_FIELDS)
    replace = getattr(CommonAttentionMetadata, "replace", None)
    yield from check_hooks([Hook("CommonAttentionMetadata replace", replace)])


def _attention() -> Iterator[Blocker]:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention

        yield from check_hooks(attention_hooks(DeepseekV4CPUAttention))
