"""Make the rows past a shrunken batch inert in one launch (docs/invariants.md I4)."""

from collections.abc import Sequence

from torch import Tensor

from dsacp.core import CapacityError, LayoutError
from dsacp.kernels.bounds import check_fields, check_rope_rows
from dsacp.kernels.checks import (
    check_device,
    check_int32,
    check_layout,
    check_rope_bank,
    check_writable,
)
from dsacp.kernels.clear_tails import reference
from dsacp.kernels.fields import DRAFT_FIELDS
from dsacp.kernels.registry import Impl, Kernel, kernel_op

KERNEL = Kernel(
    "clear_tails", reference.clear_tails, "dsacp.kernels.clear_tails.triton:clear_tails"
)


@kernel_op("dsacp::clear_tails", mutates_args=("arena", "rope_bank"))
def _clear_tails_op(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    rope_widths: Sequence[int],
    first_step: int,
    rows_from: Sequence[int],
    rows_to: Sequence[int],
    tokens_from: Sequence[int],
    tokens_to: Sequence[int],
    last_starts: Sequence[int],
    last_local_starts: Sequence[int],
    impl: str,
) -> None:
    KERNEL.select(arena.device, impl)(
        arena,
        layout,
        rope_bank,
        rope_layout,
        rope_widths,
        first_step,
        rows_from,
        rows_to,
        tokens_from,
        tokens_to,
        last_starts,
        last_local_starts,
    )


def clear_tails(
    arena: Tensor,
    layout: Tensor,
    rope_bank: Tensor,
    rope_layout: Tensor,
    rope_widths: Sequence[int],
    first_step: int,
    rows_from: Sequence[int],
    rows_to: Sequence[int],
    tokens_from: Sequence[int],
    tokens_to: Sequence[int],
    last_starts: Sequence[int],
    last_local_starts: Sequence[int],
    impl: Impl = "auto",
) -> None:
    """Write padding into ``[from, to)`` of every field, in place.

    Starts repeat the batch's last one in entries ``rows_from + 1`` to ``rows_to``; the caller
    passes it, since tails are cleaned before the replay that writes entry ``rows_from``. Lengths,
    start positions and positions become 0, slots -1, cos 1 and sin 0.

    Args:
        arena: int32 [N]; see ``draft_steps`` for it and the layouts.
        layout: int32 [G, S, 7] word offsets, -1 absent; not checked on a device.
        rope_bank: fp32 [M].
        rope_layout: int32 [C, S, 2] word offsets, -1 absent.
        rope_widths: rotary dimension rd of each of the C configurations.
        first_step: layout index of the first cleaned step.
        rows_from: a step each, first request row to clean.
        rows_to: a step each, one past the last row.
        tokens_from: a step each, first token row to clean (positions, slots, RoPE).
        tokens_to: a step each, one past the last token row.
        last_starts: a step each, the global start that the tail repeats.
        last_local_starts: a step each, the rank-local start that the tail repeats.
        impl: forces "reference" or "triton".

    Raises:
        LayoutError: dtypes, shapes, devices or list lengths contradict each other, or a range is
            reversed.
        CapacityError: the layouts do not hold these steps, a range is longer than its storage, or
            (where the layouts lie on the host) it ends past it.
    """
    _check_banks(arena, layout, rope_bank, rope_layout)
    bounds = (rows_from, rows_to, tokens_from, tokens_to, last_starts, last_local_starts)
    ranges = [*zip(rows_from, rows_to, strict=False), *zip(tokens_from, tokens_to, strict=False)]
    if len({len(bound) for bound in bounds}) != 1 or any(not 0 <= a <= b for a, b in ranges):
        raise LayoutError(
            f"expected 0 <= from <= to and one entry a step, found rows {list(rows_from)} to "
            f"{list(rows_to)} and tokens {list(tokens_from)} to {list(tokens_to)}"
        )
    held = min(layout.shape[1], rope_layout.shape[1])
    if first_step < 0 or first_step + len(rows_from) > held:
        raise CapacityError(
            f"the call needs steps {first_step}..{first_step + len(rows_from) - 1}, the layouts "
            f"hold {held}: clean only steps that have a bank"
        )
    check_fields(arena, layout, first_step, rows_to, tokens_to)
    check_rope_rows(rope_bank, rope_layout, first_step, tokens_to, rope_widths)
    _clear_tails_op(arena, layout, rope_bank, rope_layout, rope_widths, first_step, *bounds, impl)


def _check_banks(arena: Tensor, layout: Tensor, rope_bank: Tensor, rope_layout: Tensor) -> None:
    check_int32(arena=arena)
    check_rope_bank(rope_bank)
    check_layout("layout", layout, "groups", len(DRAFT_FIELDS))
    check_layout("rope_layout", rope_layout, "tables", 2)
    check_device(arena, layout, rope_bank, rope_layout)
    check_writable(arena, rope_bank)
