"""The ``vllm.general_plugins`` entry point; vLLM calls it in every process, sometimes twice."""

import logging
import os

_DONE: list[str] = []

logger = logging.getLogger("vllm.dsacp.cpu_kit")


def register() -> None:
    """Add what vLLM's CPU build lacks for DeepSeek-V4 with MTP; nothing with an accelerator."""
    if _DONE:
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        logger.debug("the CPU kit stands aside on %s", current_platform.device_type)
        return
    _DONE.append("cpu")
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.triton_utils import HAS_TRITON

    from dsacp.vllm_cpu_kit.builder_kernels import install_builder_kernels
    from dsacp.vllm_cpu_kit.features import install_features
    from dsacp.vllm_cpu_kit.ops import install_ops
    from dsacp.vllm_cpu_kit.tile_keys import install_tile_keys
    from dsacp.vllm_cpu_kit.weights import register_loader

    ops = install_ops()
    # the interpreter runs these kernels too, at seconds a launch
    if not HAS_TRITON or os.environ.get("TRITON_INTERPRET") == "1":
        install_builder_kernels()
    keys = install_tile_keys()
    ModelRegistry.register_model("DeepSeekV4MTPModel", "dsacp.vllm_cpu_kit.mtp:CpuDeepSeekV4MTP")
    register_loader()
    install_features()
    logger.info("dsacp CPU kit: %d torch operators, layer kinds added: %s", len(ops), keys)
