"""Registration of the missing operators in vLLM's own ``_C`` namespace."""

from collections.abc import Callable
from typing import Any

import torch

from dsacp.vllm_cpu_kit.ops import attention, compressor, dense

_COMPRESS = (
    "(Tensor state, Tensor gather, Tensor positions, Tensor slots, Tensor weight, float eps, "
    "Tensor cos_sin, Tensor(a!) cache, int block_size, int ratio) -> ()"
)

SCHEMAS: dict[Callable[..., Any], str] = {
    attention.fused_qnorm_rope_kv_insert_cpu: "(Tensor q, Tensor kv, Tensor positions, "
    "Tensor(a!) cache, Tensor slot_mapping, Tensor cos_sin, int padded_heads, float eps, "
    "int block_size) -> Tensor",
    attention.flash_mla_with_kvcache_cpu: "(Tensor(a!) out, Tensor q, Tensor window_cache, "
    "Tensor window_slots, int window_block, Tensor other_cache, Tensor other_slots, "
    "int other_block, Tensor sink, float scale) -> ()",
    attention.inverse_gptj_rope_o_proj_cpu: "(Tensor o, Tensor positions, Tensor cos_sin, "
    "int dim) -> Tensor",
    compressor.save_partial_states_cpu: "(Tensor kv, Tensor score, Tensor ape, "
    "Tensor positions, Tensor(a!) state, Tensor slots) -> ()",
    compressor.compress_norm_rope_store_cpu: _COMPRESS,
    compressor.compress_norm_rope_store_indexer_cpu: _COMPRESS,
    compressor.fused_indexer_q_rope_quant_cpu: "(Tensor positions, Tensor q, Tensor cos_sin, "
    "Tensor(a!) q_fp8, Tensor weights, float softmax_scale, float head_scale, "
    "Tensor(b!) weights_out) -> ()",
    dense.convert_weight_packed: "(Tensor weight) -> Tensor",
    dense.bmm_cpu: "(Tensor(a!) out, Tensor a, Tensor b, bool packed, Tensor? scale) -> ()",
    dense.hc_pre_fused_cpu: "(Tensor x, Tensor fn, Tensor scale, Tensor base, int mult, "
    "int iters, float rms_eps, float hc_eps) -> (Tensor, Tensor, Tensor)",
    dense.hc_post_fused_cpu: "(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor",
    dense.hc_head_fused_cpu: "(Tensor x, Tensor fn, Tensor scale, Tensor base, float hc_eps, "
    "float norm_eps) -> Tensor",
    dense.biased_topk_cpu: "(Tensor hidden, Tensor gate, Tensor bias, int topk, "
    "bool renormalize, str scoring, int shared, float? factor, bool apply_factor) "
    "-> (Tensor, Tensor)",
    dense.hash_topk_cpu: "(Tensor gate, Tensor table, int topk, str scoring, int shared, "
    "int experts, float factor) -> (Tensor, Tensor)",
}

# a Library unregisters its operators when it is collected
_LIBRARIES: dict[str, torch.library.Library] = {}


def install_ops() -> tuple[str, ...]:
    """Define every operator that ``torch.ops._C`` lacks; returns the names that were added.

    The engine's own kernels are loaded first and stay in place: AVX512 builds have them.
    """
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    missing = {fn: schema for fn, schema in SCHEMAS.items() if not _has(fn.__name__)}
    library = _LIBRARIES.setdefault("define", torch.library.Library("_C", "FRAGMENT"))
    for fn, schema in missing.items():
        library.define(fn.__name__ + schema)
        library.impl(fn.__name__, fn, "CompositeExplicitAutograd")
    return tuple(fn.__name__ for fn in missing)


def override_ops() -> None:
    """Put the torch operators before the engine's own ones, in this process; idempotent.

    Only the seeded loader calls this. AVX512 kernels take few expert counts (4 is refused) and
    sum in another order, and the tiny model shall give the same tokens on every CPU.
    """
    if "override" in _LIBRARIES:
        return
    library = _LIBRARIES["override"] = torch.library.Library("_C", "IMPL")
    for fn in SCHEMAS:
        library.impl(fn.__name__, fn, "CPU", allow_override=True)


def _has(name: str) -> bool:
    return hasattr(torch.ops._C, name)
