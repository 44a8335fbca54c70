"""Plans of one batch, eagerly: the 1024 words of attention and of the indexer."""

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels import PLAN_WORDS, plan_table, sas_plan
from dsacp.kernels.checks import check_starts
from dsacp.sas_metadata.spec import QliSpec, SasPolicy, SasSpec

SAS_METADATA_SIZE = PLAN_WORDS
"""Words of a plan; the attention op accepts no other size."""


def plan_sas(
    spec: SasSpec,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    policy: SasPolicy = "upstream",
    out: Tensor | None = None,
) -> Tensor:
    """Split the query rows of sparse attention over cores, without a host sync.

    Args:
        spec: heads, cores, window and compression.
        query_start_loc: int32 [B+1], the starts that the consumer is launched with.
        seq_lens: int32 [B], KV lengths including the queries; 0 on padded rows.
        policy: "upstream" gives vllm-ascend's ranges exactly; "balanced" gives the contiguous
            split whose most loaded core costs least, never more than upstream's.
        out: int32 [1024] to write in place; allocated when None.

    Returns:
        ``out``, or the new words; words that no record uses are 0 (upstream leaves them
        uninitialised: compare decoded ranges, not raw words, with its own).

    Raises:
        LayoutError: a dtype or length does not fit; ``out`` is then untouched.
    """
    return _plan(spec, query_start_loc, seq_lens, policy, out)


def plan_qli(
    spec: QliSpec,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    policy: SasPolicy = "upstream",
    out: Tensor | None = None,
) -> Tensor:
    """Split the indexer's rows (four query tokens each) over cores; see ``plan_sas``.

    ``seq_lens`` are uncompressed. A query prefix without the leading 0, as upstream passes it,
    needs the 0 in front.
    """
    return _plan(spec, query_start_loc, seq_lens, policy, out)


def _plan(
    spec: SasSpec | QliSpec,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    policy: SasPolicy,
    out: Tensor | None,
) -> Tensor:
    check_starts(query_start_loc, seq_lens)
    if out is None:
        out = torch.empty(SAS_METADATA_SIZE, dtype=torch.int32, device=seq_lens.device)
    elif out.numel() != SAS_METADATA_SIZE:
        raise LayoutError(
            f"expected out of {SAS_METADATA_SIZE} words, found {out.numel()}: the attention op "
            "accepts no other size"
        )
    # A table on the host: its numbers become launch arguments, so that nothing is copied to a
    # device and the call can be captured.
    row = spec.plan_row(0, 0, 0, seq_lens.numel(), policy)
    sas_plan(query_start_loc, seq_lens, out, plan_table([row]))
    return out
