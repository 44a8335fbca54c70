"""A host double: an installed vllm-ascend whose builder and proposer run on a CPU (README)."""

import os

# before vLLM is imported: its platform stays the CPU, and torch looks for no device backend
os.environ["VLLM_PLUGINS"] = ""
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # upstream U56

from ascend_double.host import HostDouble, install

__all__ = ["HostDouble", "install"]
