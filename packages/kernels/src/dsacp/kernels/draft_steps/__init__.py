"""Metadata of all draft steps and all KV groups in one launch (upstream U24, U25)."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec

from torch import Tensor

from dsacp.core import LayoutError, round_up
from dsacp.kernels.bounds import check_fields, check_rope_rows
from dsacp.kernels.checks import check_device
from dsacp.kernels.draft_steps import reference
from dsacp.kernels.draft_steps.numbers import StepNumbers
from dsacp.kernels.draft_steps.validate import check_banks, check_inputs, check_steps
from dsacp.kernels.registry import Impl, Kernel, kernel_op

P = ParamSpec("P")
TRITON = "dsacp.kernels.draft_steps.triton"
KERNEL = Kernel(
    "draft_steps", reference.draft_steps, f"{TRITON}:draft_steps", f"{TRITON}:bind_draft_steps"
)


@kernel_op("dsacp::draft_steps", mutates_args=("arena", "rope_bank"), symbolic=False)
def _draft_steps_op(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    drafts: Tensor | None,
    tables: Sequence[Tensor],
    pointers: Tensor,
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    numbers: Sequence[int],
    impl: str,
) -> None:
    KERNEL.select(arena.device, impl)(
        query_start_loc,
        seq_lens,
        num_rejected,
        num_reqs,
        drafts,
        tables,
        pointers,
        arena,
        layout,
        rope_bank,
        rope_layout,
        numbers,
    )


def prepare_draft_steps(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    block_tables: Sequence[Tensor],
    cos_tables: Sequence[Tensor],
    sin_tables: Sequence[Tensor],
    pointers: Tensor,
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    block_sizes: Sequence[int],
    row_counts: Sequence[int],
    token_counts: Sequence[int],
    first_step: int,
    tp_size: int,
    tp_rank: int,
    pad_query_len: int,
    max_model_len: int,
    saturate: bool,
    repeat_padding: bool,
    causal: bool,
    impl: Impl = "auto",
    drafts: Tensor | None = None,
    start_counts: Sequence[int] | None = None,
) -> Callable[[], None]:
    """Check a ``draft_steps`` call once; what is returned runs it, again and again.

    A call computes the metadata of every step and group from step 0's state, in place.
    The first computed step takes the batch as given; each later one has one token a request and
    the length ``seq_len - rejected + j``. A request of length 0 is padding in every step: its
    positions and lengths are 0 and its tokens have slot -1. So it is, in draft steps >= 1, with a
    request without query tokens and with one that ``drafts`` leaves out. Without a slot are also
    tokens whose block is negative or outside the table, whose slot would pass int32, and, in every
    group, of requests past the smallest table's rows. RoPE rows cover all padded tokens.

    Counts are not trusted: ``num_reqs``, starts and rejected counts are clamped to the step.
    Falling starts are the caller's to refuse.

    Args:
        query_start_loc: int32 [>= rows + 1], clamped to [0, the first step's token count]; entries
            past ``num_reqs`` are ignored.
        seq_lens: int32 [>= rows], KV lengths with this step's queries and rejected tokens.
        num_rejected: int32 [>= rows], clamped to [0, query length].
        num_reqs: int32 [1], real requests; read on the device, so a replay may change it.
        block_tables: a group each, int32 [R, M] with unit column stride, read in place.
        cos_tables: a RoPE configuration each, fp32 [L, rd]; row 0 is cos 1.
        sin_tables: as ``cos_tables``; row 0 is sin 0.
        pointers: int64, per group (address, row stride, width) of its table, then per
            configuration the two table addresses; the reference ignores its content.
        arena: int32 [N] that holds every field of every group and step.
        layout: int32 [G, S, 7], word offsets in ``arena`` by ``DRAFT_FIELDS``; -1 is absent. The
            reference reads it on the host, so a CPU copy avoids a sync there. On a device nobody
            checks the offsets: who makes the layout must leave room for these counts.
        rope_bank: fp32 [M] that holds the RoPE rows.
        rope_layout: int32 [C, S, 2], word offsets of cos and sin rows; -1 is absent.
        block_sizes: cache rows of a block, a group each.
        row_counts: request rows of each computed step.
        token_counts: the host's padded tokens of each computed step; token fields get as many
            entries rounded up to ``tp_size``. Equal to ``row_counts`` after the first step.
        first_step: layout index of the first computed step. Above 0, in a causal step, the
            overflow rule applies to it too, and a request with no more tokens than
            ``first_step`` is one that the host has already reset (without ``saturate``).
        tp_size: ranks that share the tokens.
        tp_rank: this rank.
        pad_query_len: query tokens of a padded request in the first computed step.
        max_model_len: positions at or above it overflow: slot -1, position 0 and length 1, or,
            with ``saturate``, the last position and ``max_model_len``.
        saturate: see ``max_model_len``.
        repeat_padding: padded query starts repeat the last real one instead of growing.
        causal: False for mutually visible query blocks (upstream U35).
        impl: forces "reference" or "triton".
        drafts: int32 [>= rows]; 0 leaves a request out of draft steps >= 1, the first computed one
            too where it is one of them (a causal step, ``first_step`` > 0). None leaves out nobody.
        start_counts: rows of each step through which its query starts are written, repeating the
            last one past ``row_counts``; the rows of the largest capture, so that a smaller one
            finds nothing of it there. The row counts by default.

    Raises:
        LayoutError: dtypes, shapes, devices or integers contradict each other.
        CapacityError: the inputs, layouts or (where the layouts lie on the host) storages are too
            small for the counts.
    """
    start_counts = row_counts if start_counts is None else start_counts
    check_steps(row_counts, token_counts, start_counts, tp_size, tp_rank)
    check_inputs(query_start_loc, seq_lens, num_rejected, num_reqs, drafts, row_counts[0])
    check_banks(
        block_tables,
        block_sizes,
        cos_tables,
        sin_tables,
        pointers,
        arena,
        layout,
        rope_bank,
        rope_layout,
        first_step + len(row_counts) - 1,
    )
    check_device(arena, query_start_loc, seq_lens, num_rejected, num_reqs, drafts)
    padded = [round_up(tokens, tp_size) for tokens in token_counts]
    check_fields(arena, layout, first_step, row_counts, padded, start_counts)
    widths = [table.shape[1] for table in cos_tables]
    check_rope_rows(rope_bank, rope_layout, first_step, padded, widths)
    if min(first_step, pad_query_len) < 0 or max_model_len < 1:
        raise LayoutError(
            f"expected first_step >= 0, pad_query_len >= 0 and max_model_len >= 1, found "
            f"{first_step}, {pad_query_len} and {max_model_len}"
        )
    numbers = StepNumbers(
        tuple(block_sizes),
        tuple(row_counts),
        tuple(token_counts),
        first_step,
        tp_size,
        tp_rank,
        pad_query_len,
        max_model_len,
        saturate,
        repeat_padding,
        causal,
        tuple(start_counts),
    )
    arguments = (
        query_start_loc,
        seq_lens,
        num_rejected,
        num_reqs,
        drafts,
        (*block_tables, *cos_tables, *sin_tables),
        pointers,
        arena,
        layout,
        rope_bank,
        rope_layout,
        numbers.pack(),
    )
    return KERNEL.prepare(_draft_steps_op, arguments, arena.device, impl)


def _at_once(prepare: Callable[P, Callable[[], None]]) -> Callable[P, None]:
    @wraps(prepare)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        prepare(*args, **kwargs)()

    return run


draft_steps = _at_once(prepare_draft_steps)
"""Check the arguments of ``prepare_draft_steps`` and run the call once."""
