"""Planner, codec and explainer of the sparse-attention-shared-KV work split (int32[1024])."""

from dsacp.sas_metadata.codec import CoreRange, decode_sas, encode_sas
from dsacp.sas_metadata.costs import (
    batch_costs,
    core_costs,
    lower_bound,
    row_costs,
    true_block_count,
)
from dsacp.sas_metadata.explain import explain
from dsacp.sas_metadata.holder import SasHolder
from dsacp.sas_metadata.legal import check_legal
from dsacp.sas_metadata.plan import SAS_METADATA_SIZE, plan_qli, plan_sas
from dsacp.sas_metadata.spec import DeviceFamily, QliSpec, SasPolicy, SasSpec

__all__ = [
    "SAS_METADATA_SIZE",
    "CoreRange",
    "DeviceFamily",
    "QliSpec",
    "SasHolder",
    "SasPolicy",
    "SasSpec",
    "batch_costs",
    "check_legal",
    "core_costs",
    "decode_sas",
    "encode_sas",
    "explain",
    "lower_bound",
    "plan_qli",
    "plan_sas",
    "row_costs",
    "true_block_count",
]
