"""Token shards, capacities, buckets, buffer regions, errors, output files: all without torch."""

from dsacp.core.buckets import Uniform
from dsacp.core.capacity import DraftCapacity, StepLayout, align_capture_sizes
from dsacp.core.checks import INT32_MAX, MAX_TP_SIZE, check_whole
from dsacp.core.errors import (
    AliasError,
    CapacityError,
    DsacpError,
    HostSyncError,
    LayoutError,
    PaddingError,
    StaleAddressError,
    StaleValueError,
    UnsupportedHostError,
)
from dsacp.core.install import install_hint
from dsacp.core.output import check_output, write_whole
from dsacp.core.region import GUARD_WORD, BufferRegion, check_disjoint
from dsacp.core.shard import TokenShard, round_up
from dsacp.core.uncopied import Uncopied

__all__ = [
    "GUARD_WORD",
    "INT32_MAX",
    "MAX_TP_SIZE",
    "AliasError",
    "BufferRegion",
    "CapacityError",
    "DraftCapacity",
    "DsacpError",
    "HostSyncError",
    "LayoutError",
    "PaddingError",
    "StaleAddressError",
    "StaleValueError",
    "StepLayout",
    "TokenShard",
    "Uncopied",
    "Uniform",
    "UnsupportedHostError",
    "align_capture_sizes",
    "check_disjoint",
    "check_output",
    "check_whole",
    "install_hint",
    "round_up",
    "write_whole",
]
