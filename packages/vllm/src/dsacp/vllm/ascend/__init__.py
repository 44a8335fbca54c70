"""dsacp as a plug-in of vllm-ascend: graph-safe metadata for its DSA-CP builder.

Importing this package imports neither torch nor vllm-ascend; ``register_ascend`` waits until
vllm-ascend imports its own modules.
"""

from dsacp.vllm.ascend.plugin import register_ascend

__all__ = ["register_ascend"]
