"""What a CPU needs to run a tiny DeepSeek-V4 with MTP in vLLM.

Importing this package imports neither torch nor vLLM; ``register`` does, in vLLM's processes.
"""

from dsacp.vllm_cpu_kit.model import VOCAB, WINDOW, tiny_config, write_model
from dsacp.vllm_cpu_kit.plugin import register

__all__ = ["VOCAB", "WINDOW", "register", "tiny_config", "write_model"]
