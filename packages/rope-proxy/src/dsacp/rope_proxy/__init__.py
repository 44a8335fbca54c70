"""RoPE tables, registry and address-stable banks for draft steps."""

from dsacp.rope_proxy.banks import RopeBanks
from dsacp.rope_proxy.proxy import RopeDataProxy, RopeRows
from dsacp.rope_proxy.registry import DEFAULT_GROUP, RopeRegistry
from dsacp.rope_proxy.table import RopeConfig, build_table, inverse_frequencies

__all__ = [
    "DEFAULT_GROUP",
    "RopeBanks",
    "RopeConfig",
    "RopeDataProxy",
    "RopeRegistry",
    "RopeRows",
    "build_table",
    "inverse_frequencies",
]
