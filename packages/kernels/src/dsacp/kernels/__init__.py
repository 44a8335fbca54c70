"""Metadata and sparse-attention kernels of dsacp: a torch reference beside each Triton kernel."""

from dsacp.kernels.clear_tails import clear_tails
from dsacp.kernels.compressor_rows import CompressorRows, compressor_row_count, compressor_rows
from dsacp.kernels.covered_rows import covered_rows
from dsacp.kernels.draft_steps import draft_steps, prepare_draft_steps
from dsacp.kernels.dspark_indices import dspark_index_width, dspark_indices
from dsacp.kernels.fields import DRAFT_FIELDS, field_length
from dsacp.kernels.local_metadata import LocalMetadata, local_metadata
from dsacp.kernels.registry import Impl, Kernel
from dsacp.kernels.rope_gather import rope_gather
from dsacp.kernels.sas_plan import PLAN_WORDS, plan_table, sas_plan
from dsacp.kernels.sas_plan.table import MAX_ROWS as MAX_PLAN_ROWS
from dsacp.kernels.slot_mapping import slot_mapping
from dsacp.kernels.sparse_attention import sparse_attention
from dsacp.kernels.stage_inputs import stage_inputs

__all__ = [
    "DRAFT_FIELDS",
    "MAX_PLAN_ROWS",
    "PLAN_WORDS",
    "CompressorRows",
    "Impl",
    "Kernel",
    "LocalMetadata",
    "clear_tails",
    "compressor_row_count",
    "compressor_rows",
    "covered_rows",
    "draft_steps",
    "dspark_index_width",
    "dspark_indices",
    "field_length",
    "local_metadata",
    "plan_table",
    "prepare_draft_steps",
    "rope_gather",
    "sas_plan",
    "slot_mapping",
    "sparse_attention",
    "stage_inputs",
]
