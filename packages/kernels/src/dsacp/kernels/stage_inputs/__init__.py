"""Copy a step's moving inputs into one persistent block in one launch."""

from torch import Tensor

from dsacp.core import CapacityError, LayoutError, check_whole
from dsacp.kernels.checks import check_device, check_int32, check_writable
from dsacp.kernels.registry import Impl, Kernel, kernel_op
from dsacp.kernels.stage_inputs import reference

UNBOUNDED = 2**31 - 1
"""More tokens than a batch may have: starts are then copied as they are, unless negative."""

KERNEL = Kernel(
    "stage_inputs", reference.stage_inputs, "dsacp.kernels.stage_inputs.triton:stage_inputs"
)


@kernel_op("dsacp::stage_inputs", mutates_args=("out",), direct=True)
def _stage_inputs_op(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    drafts: Tensor | None,
    num_reqs: int,
    num_tokens: int,
    out: Tensor,
    rows: int,
    with_drafts: bool,
    impl: str,
) -> None:
    KERNEL.select(out.device, impl)(
        query_start_loc,
        seq_lens,
        num_rejected,
        drafts,
        num_reqs,
        num_tokens,
        out,
        rows,
        with_drafts,
    )


def stage_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor | None,
    num_reqs: int,
    out: Tensor,
    rows: int,
    impl: Impl = "auto",
    *,
    num_tokens: int = UNBOUNDED,
    drafts: Tensor | None = None,
    with_drafts: bool = False,
) -> None:
    """Write ``[num_reqs | query starts | lengths | rejected | drafts]`` for ``rows`` requests.

    Args:
        query_start_loc: int32 [>= num_reqs + 1]; written clamped to [0, num_tokens].
        seq_lens: int32 [>= num_reqs].
        num_rejected: int32 [>= num_reqs], or None where nothing was rejected.
        num_reqs: real requests; rows past it repeat the last start and have length 0.
        out: int32 [>= 3 * rows + 2], with a mask [>= 4 * rows + 2]; exactly these words are
            written.
        rows: requests that the block holds.
        impl: forces "reference" or "triton".
        num_tokens: query tokens of the batch, which no start passes.
        drafts: int32 [>= num_reqs], 0 where a request takes no part in draft steps >= 1; 1 is
            written for all others, padded rows among them.
        with_drafts: whether the block ends with the mask, also where ``drafts`` is None.

    Raises:
        CapacityError: more requests than ``rows``, or ``out`` is too short.
        LayoutError: a dtype or device does not fit, a count is no whole number, or an input is
            shorter than ``num_reqs``.
    """
    given = {"query_start_loc": query_start_loc, "seq_lens": seq_lens}
    if num_rejected is not None:
        given["num_rejected"] = num_rejected
    if drafts is not None:
        given["drafts"] = drafts
    check_int32(**given, out=out)
    check_device(out, *given.values())
    check_writable(out)
    _check_counts(num_reqs, num_tokens, rows)
    with_drafts = with_drafts or drafts is not None
    words = (4 if with_drafts else 3) * rows + 2
    if num_reqs > rows or out.numel() < words:
        raise CapacityError(
            f"the batch needs {num_reqs} of {rows} requests and {words} words, the block "
            f"holds {out.numel()} words: raise max_num_seqs or stage fewer requests"
        )
    held = min([query_start_loc.numel() - 1, *[tensor.numel() for tensor in given.values()]])
    if held < num_reqs:
        raise LayoutError(
            f"expected inputs of {num_reqs} requests, found {held}: pass whole request tensors"
        )
    _stage_inputs_op(
        query_start_loc,
        seq_lens,
        num_rejected,
        drafts,
        num_reqs,
        num_tokens,
        out,
        rows,
        with_drafts,
        impl,
    )


def _check_counts(num_reqs: int, num_tokens: int, rows: int) -> None:
    """Raise ``LayoutError`` unless all are whole numbers >= 0; plain ones cost next to nothing.

    A fraction would be noticed by a slice, after the first words are written.
    """
    plain = type(num_reqs) is type(num_tokens) is type(rows) is int
    if plain and num_reqs >= 0 and num_tokens >= 0 and rows >= 0:
        return
    check_whole("num_reqs", num_reqs, 0)
    check_whole("num_tokens", num_tokens, 0)
    check_whole("rows", rows, 0)
