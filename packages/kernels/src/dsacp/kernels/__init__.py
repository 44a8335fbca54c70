"""Metadata and sparse-attention kernels of dsacp: a torch reference beside each Triton kernel."""

from dsacp.kernels.local_metadata import LocalMetadata, local_metadata
from dsacp.kernels.registry import Impl, Kernel

__all__ = ["Impl", "Kernel", "LocalMetadata", "local_metadata"]
