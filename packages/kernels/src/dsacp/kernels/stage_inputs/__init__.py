"""Copy a step's moving inputs into one persistent block in one launch (design 4)."""

from torch import Tensor

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels.checks import check_int32
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.stage_inputs import reference

KERNEL = Kernel(
    "stage_inputs", reference.stage_inputs, "dsacp.kernels.stage_inputs.triton:stage_inputs"
)


@kernel_op("dsacp::stage_inputs", mutates_args=("out",), direct=True)
def _stage_inputs_op(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    num_reqs: int,
    out: Tensor,
    rows: int,
    impl: str,
) -> None:
    KERNEL.select(out.device, impl)(query_start_loc, seq_lens, num_rejected, num_reqs, out, rows)


def stage_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    num_reqs: int,
    out: Tensor,
    rows: int,
    impl: Impl = "auto",
) -> None:
    """Write ``[num_reqs | query starts | lengths | rejected]`` for ``rows`` requests.

    Args:
        query_start_loc: int32 [>= num_reqs + 1].
        seq_lens: int32 [>= num_reqs].
        num_rejected: int32 [>= num_reqs], or None where nothing was rejected.
        num_reqs: real requests; rows past it repeat the last start and have length 0.
        out: int32 [>= 3 * rows + 2]; exactly the first ``1 + (rows + 1) + rows + rows`` words
            are written.
        rows: requests that the block holds.
        impl: forces "reference" or "triton".

    Raises:
        CapacityError: more requests than ``rows``, or ``out`` is too short.
        LayoutError: a dtype does not fit, or an input is shorter than ``num_reqs``.
    """
    rejected = seq_lens if num_rejected is None else num_rejected
    check_int32(query_start_loc=query_start_loc, seq_lens=seq_lens, num_rejected=rejected, out=out)
    if not 0 <= num_reqs <= rows or out.numel() < 3 * rows + 2:
        raise CapacityError(
            f"the batch needs {num_reqs} of {rows} requests and {3 * rows + 2} words, the block "
            f"holds {out.numel()} words: raise max_num_seqs or stage fewer requests"
        )
    held = min(query_start_loc.numel() - 1, seq_lens.numel(), rejected.numel())
    if held < num_reqs:
        raise LayoutError(
            f"expected inputs of {num_reqs} requests, found {held}: pass whole request tensors"
        )
    _stage_inputs_op(query_start_loc, seq_lens, num_rejected, num_reqs, out, rows, impl)
