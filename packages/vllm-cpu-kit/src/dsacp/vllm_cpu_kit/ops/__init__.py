"""The DeepSeek-V4 CPU operators that vLLM's AVX2 build lacks, in plain torch."""

from dsacp.vllm_cpu_kit.ops.library import SCHEMAS, install_ops, override_ops

__all__ = ["SCHEMAS", "install_ops", "override_ops"]
