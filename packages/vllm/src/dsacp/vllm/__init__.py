"""dsacp as a plug-in of vLLM: our metadata builder for the draft layers.

Importing this package imports neither torch nor vLLM; ``register`` does, in vLLM's processes.
"""

from dsacp.vllm.plugin import register
from dsacp.vllm.settings import Blocker, blockers, requested

__all__ = ["Blocker", "blockers", "register", "requested"]
