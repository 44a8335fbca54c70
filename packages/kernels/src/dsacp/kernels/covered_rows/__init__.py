"""Which query tokens a SAS or QLI plan covers (upstream U4, U8, U12)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels.checks import check_device, check_int32, check_writable, describe, is_dense
from dsacp.kernels.covered_rows import reference
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.sas_plan.table import MAX_CORES, PLAN_WORDS

KERNEL = Kernel(
    "covered_rows", reference.covered_rows, "dsacp.kernels.covered_rows.triton:covered_rows"
)


@dataclass(frozen=True)
class PlanLayout:
    """How a consumer reads the 1024 words (upstream U4).

    Attributes:
        record_size: words of one core's record.
        num_records: physical cores launched.
        paired: cores 2c and 2c+1 share a row range, 64 heads each.
        reads_core0_start: False where the kernel assumes that core 0 starts at the first row.
    """

    record_size: int
    num_records: int
    paired: bool
    reads_core0_start: bool


def plan_layout(family: str, num_heads: int, num_cores: int) -> PlanLayout:
    """Return the record layout of a device family; ``num_cores`` counts physical cube cores.

    Raises:
        LayoutError: unknown family, head count or core count.
    """
    if family not in {"a2", "a5"}:
        raise LayoutError(f"expected device family 'a2' or 'a5', found {family!r}")
    if not 1 <= num_cores <= MAX_CORES:
        raise LayoutError(
            f"expected 1..{MAX_CORES} cores for a plan, found {num_cores}: pass num_cores of the "
            "launch that reads it"
        )
    paired = family == "a5" and num_heads == 128
    if paired and num_cores % 2:
        raise LayoutError(
            f"expected an even core count for 128 heads on a5 (cores work in pairs), found "
            f"{num_cores}"
        )
    return PlanLayout(9 if family == "a5" else 8, num_cores, paired, family == "a5")


def check_plan_words(words: Tensor, layout: PlanLayout) -> None:
    """Raise ``LayoutError`` unless ``words`` holds every record that the consumer reads."""
    check_int32(words=words)
    needed = layout.record_size * layout.num_records
    if words.numel() < needed:
        raise LayoutError(
            f"expected at least {needed} plan words for {layout.num_records} cores, found "
            f"{words.numel()}: pass the whole int32[{PLAN_WORDS}] buffer"
        )


@kernel_op("dsacp::covered_rows", mutates_args=("out",))
def _covered_rows_op(
    words: Tensor,
    query_start_loc: Tensor,
    out: Tensor,
    record_size: int,
    num_records: int,
    paired: bool,
    reads_core0_start: bool,
    tokens_per_row: int,
    impl: str,
) -> None:
    KERNEL.select(words.device, impl)(
        words,
        query_start_loc,
        out,
        record_size,
        num_records,
        paired,
        reads_core0_start,
        tokens_per_row,
    )


def covered_rows(
    words: Tensor,
    query_start_loc: Tensor,
    family: str,
    num_heads: int,
    num_cores: int,
    tokens_per_row: int = 1,
    *,
    num_tokens: int | None = None,
    out: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Return which query tokens the plan's enabled cores compute.

    Args:
        words: int32 [1024], the plan.
        query_start_loc: int32 [B+1], the query starts that the consumer is launched with.
        family: "a2" (8-word records, core 0's start ignored) or "a5" (9-word records).
        num_heads: query heads; 128 on a5 means duplicated core pairs, and both halves must agree.
        num_cores: physical cube cores launched.
        tokens_per_row: query tokens of one plan row: 1 for attention, 4 for the indexer.
        num_tokens: T; read from ``query_start_loc`` (a host sync on a device) when None.
        out: bool [T] to write in place; allocated when None.
        impl: forces "reference" or "triton".

    Returns:
        bool [T]; False for tokens of no request.

    Raises:
        LayoutError: the words are too short, or a value is out of its range.
    """
    layout = plan_layout(family, num_heads, num_cores)
    check_plan_words(words, layout)
    check_int32(query_start_loc=query_start_loc)
    check_device(words, query_start_loc)
    if query_start_loc.numel() < 1:
        raise LayoutError("expected query_start_loc of at least one start, found none")
    if tokens_per_row < 1:
        raise LayoutError(f"expected tokens_per_row >= 1, found {tokens_per_row}")
    if out is None:
        total = int(query_start_loc[-1].item()) if num_tokens is None else num_tokens
        out = torch.empty(total, dtype=torch.bool, device=words.device)
    elif not is_dense(out, torch.bool, 1):
        raise LayoutError(f"expected out as contiguous bool [T], found {describe(out)}")
    check_device(words, out)
    check_writable(out)
    _covered_rows_op(
        words,
        query_start_loc,
        out,
        layout.record_size,
        layout.num_records,
        layout.paired,
        layout.reads_core0_start,
        tokens_per_row,
        impl,
    )
    return out
