"""Work plans of sparse attention and of the lightning indexer (upstream U4-U7, U12, U13)."""

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_layouts_device,
    check_writable,
    describe,
    is_dense,
)
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.sas_plan import reference
from dsacp.kernels.sas_plan.table import PLAN_COLUMNS, PLAN_WORDS, plan_table

__all__ = ["KERNEL", "PLAN_COLUMNS", "PLAN_WORDS", "plan_table", "sas_plan"]

KERNEL = Kernel("sas_plan", reference.sas_plan, "dsacp.kernels.sas_plan.triton:sas_plan")


@kernel_op("dsacp::sas_plan", mutates_args=("out",))
def _sas_plan_op(
    query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor, impl: str
) -> None:
    KERNEL.select(out.device, impl)(query_start_loc, seq_lens, out, plans)


def sas_plan(
    query_start_loc: Tensor, seq_lens: Tensor, out: Tensor, plans: Tensor, impl: Impl = "auto"
) -> None:
    """Write the work plans of all draft steps and groups, in place and in one launch.

    Columns of ``plans``: 0 offset of the query starts, 1 of the lengths, 2 of the output (words
    of the three tensors, which may be one arena), 3 rows B, 4 kind (0 SAS, 1 QLI), 5 num_heads,
    6 family (0 a2, 1 a5), 7 num_cores, 8 window_left, 9 window_right, 10 cmp_ratio, 11 cmp_topk,
    12 policy (0 upstream, 1 balanced), 13 index of an earlier plan whose words are copied, or -1,
    14 and 15 zero. Exactly 1024 words a plan are written; words that no record uses are 0.

    Args:
        query_start_loc: int32, holds B+1 query starts of every plan.
        seq_lens: int32, holds B KV lengths of every plan; 0 marks a row without KV.
        out: int32, holds 1024 words for every plan.
        plans: int32 [P, 16]; ``plan_table`` builds it. On the device of ``out``: one launch, and a
            plan of more than 16,384 requests covers nothing. On the host: checked, and on an
            accelerator a launch a plan with the numbers as arguments, so that the call can still
            be captured.
        impl: forces "reference" or "triton".

    Raises:
        LayoutError: a dtype or shape does not fit, or (where the table is read on the host) a plan
            reaches past a tensor or has a specification that devices plan differently.
        CapacityError: a table on the host has a plan of more than 16,384 requests for an
            accelerator. Nothing is written then.
    """
    check_int32(query_start_loc=query_start_loc, seq_lens=seq_lens, out=out)
    if not is_dense(plans, torch.int32, 2) or plans.shape[1] != PLAN_COLUMNS:
        raise LayoutError(
            f"expected plans as contiguous int32 [P, {PLAN_COLUMNS}], found {describe(plans)}: "
            "build it with plan_table"
        )
    check_device(out, query_start_loc, seq_lens)
    check_layouts_device(out, plans)
    check_writable(out)
    _sas_plan_op(query_start_loc, seq_lens, out, plans, impl)
