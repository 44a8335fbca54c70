"""Launcher of the draft steps' Triton kernel: everything in one launch for ordinary engines."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from dsacp.kernels.checks import check_device
from dsacp.kernels.direct import addresses, cuda_device, takes_addresses
from dsacp.kernels.draft_steps.numbers import smallest_table
from dsacp.kernels.draft_steps.triton_kernel import draft_steps_kernel
from dsacp.kernels.draft_steps.triton_plan import Launch, plan_launches


def draft_steps(
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
) -> None:
    """Launch the kernel; same contract as the reference.

    More than 12 groups (2 with a block size that is no power of two), more than 4 RoPE tables,
    tables of several widths and later steps of several sizes each cost another launch.
    """
    inputs = _readable_inputs(query_start_loc, seq_lens, num_rejected, num_reqs, drafts)
    masked = 0 if drafts is None else drafts.numel()
    for launch in _planned(tables, layout, arena, numbers):
        launch.run(
            *inputs,
            *launch.storages(pointers, arena, layout, rope_bank, rope_layout),
            masked,
            *launch.integers,
        )


def bind_draft_steps(
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
) -> Callable[[], None] | None:
    """Return ``draft_steps`` of these addresses, or None where only Triton's own launcher works.

    Raises:
        LayoutError: a tensor is not on the arena's device, where the kernel would read it.
    """
    if cuda_device(arena) is None or not takes_addresses(draft_steps_kernel):
        return None
    inputs = _readable_inputs(query_start_loc, seq_lens, num_rejected, num_reqs, drafts)
    masked = 0 if drafts is None else drafts.numel()
    check_device(arena, *tables)
    calls = []
    for launch in _planned(tables, layout, arena, numbers):
        storages = launch.storages(pointers, arena, layout, rope_bank, rope_layout)
        found = addresses(arena, *inputs, *storages)
        calls.append(partial(launch.run, *found, masked, *launch.integers))
    return calls[0] if len(calls) == 1 else partial(_run_all, tuple(calls))


def _readable_inputs(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    num_reqs: Tensor,
    drafts: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the kernel's inputs, the first start in place of what has no word.

    Ascend loads masked words too, and without rows there is no first length or draft to stand for
    them.
    """
    lens = seq_lens if seq_lens.numel() else query_start_loc
    mask = query_start_loc if drafts is None or not drafts.numel() else drafts
    return query_start_loc, lens, num_rejected, num_reqs, mask


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _planned(
    tables: Sequence[Tensor], layout: Tensor, arena: Tensor, numbers: Sequence[int]
) -> tuple[Launch, ...]:
    # The kernel reads tables by address; of the cos and sin tables it needs a shape.
    groups = numbers[0]
    shapes = tuple([table.shape for table in tables[groups : (groups + len(tables)) // 2]])
    table_rows = smallest_table(tables[:groups])
    return plan_launches(tuple(numbers), layout.shape[1], table_rows, shapes, cuda_device(arena))
