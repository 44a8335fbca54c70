"""Address-stable draft metadata for DSA context parallelism: arenas, cross-group cache, builder."""

from dsacp.drafting_cache.arena import Arena, ArenaPlan, FieldKey, FieldPlan, plan_arena
from dsacp.drafting_cache.buffers import storage_bytes
from dsacp.drafting_cache.builder import DraftMetadataBuilder
from dsacp.drafting_cache.config import BuilderConfig, Overflow, Padding
from dsacp.drafting_cache.session import CACHED_SHAPES
from dsacp.drafting_cache.types import (
    BoundInputs,
    DraftBatch,
    GroupMetadata,
    GroupSpec,
    StepMetadata,
)

__all__ = [
    "CACHED_SHAPES",
    "Arena",
    "ArenaPlan",
    "BoundInputs",
    "BuilderConfig",
    "DraftBatch",
    "DraftMetadataBuilder",
    "FieldKey",
    "FieldPlan",
    "GroupMetadata",
    "GroupSpec",
    "Overflow",
    "Padding",
    "StepMetadata",
    "plan_arena",
    "storage_bytes",
]
