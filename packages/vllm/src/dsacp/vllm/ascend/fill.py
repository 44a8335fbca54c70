"""Brings a bank up to date, in place and in stream order, without asking the device for a value."""

from collections.abc import Callable

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels import dspark_indices, local_metadata, rope_gather, stage_inputs
from dsacp.vllm.ascend.banks import Bank
from dsacp.vllm.ascend.shapes import Shape

SlotFormat = Callable[[Tensor, int], Tensor]
"""The device's own slot format: (flat slots, block size) to what its cache update reads."""


def fill_rows(
    bank: Bank, shape: Shape, query_start_loc: Tensor, seq_lens: Tensor, causal: bool
) -> None:
    """Copy starts and lengths and derive the rank's own; rows past the shape become inert.

    Args:
        bank: the buffers.
        shape: the build.
        query_start_loc: int32 [>= rows + 1]; padded requests of the host are among the rows.
        seq_lens: int32 [>= rows], 0 on padded requests.
        causal: False for DSpark's query block.
    """
    rows = bank.size.rows
    starts, lengths = (tensor.to(torch.int32) for tensor in (query_start_loc, seq_lens))
    stage_inputs(starts, lengths, None, shape.rows, bank.words("inputs"), rows)
    # every row of the buffer is computed: what a larger batch left behind goes with this launch
    local_metadata(
        staged_starts(bank), staged_lengths(bank), shape.shard, causal=causal, out=bank.local
    )


def staged_starts(bank: Bank) -> Tensor:
    """Return the bank's global query starts, int32 [rows + 1]."""
    return bank.words("inputs")[1 : bank.size.rows + 2]


def staged_lengths(bank: Bank) -> Tensor:
    """Return the bank's global lengths, int32 [rows]."""
    rows = bank.size.rows
    return bank.words("inputs")[rows + 2 : 2 * rows + 2]


def fill_tokens(
    bank: Bank,
    shape: Shape,
    positions: Tensor,
    slots: Tensor,
    block_size: int,
    format_slots: SlotFormat,
) -> None:
    """Copy positions and slots and gather RoPE rows; padded tokens become inert.

    Args:
        bank: the buffers.
        shape: the build.
        positions: integers [>= real_tokens].
        slots: flat slots [>= real_tokens].
        block_size: slots of a page.
        format_slots: the device's slot format.
    """
    real, padded = shape.real_tokens, shape.shard.padded
    target = bank.words("positions")
    target[:real].copy_(positions[:real])
    if real < padded:
        target[real:padded].zero_()
    bank.positions[:padded].copy_(target[:padded])
    fill_slots(bank, shape, slots, block_size, format_slots)
    for key, (cos_table, sin_table) in bank.tables.items():
        cos, sin = bank.rope_rows[key]
        rope_gather(target[:padded], cos_table, sin_table, cos[:padded], sin[:padded])


def fill_slots(
    bank: Bank, shape: Shape, slots: Tensor, block_size: int, format_slots: SlotFormat
) -> None:
    """Bring the host's flat slots [>= real_tokens] into the device's format; padding gets -1."""
    real, padded = shape.real_tokens, shape.shard.padded
    flat = slots[:real]
    if real < padded:
        flat = torch.constant_pad_nd(flat, (0, padded - real), -1)
    bank.slots[:padded].copy_(format_slots(flat, block_size))


def fill_table(bank: Bank, shape: Shape, table: Tensor) -> Tensor:
    """Copy the real rows of a block table that the host clones every round; returns the rows.

    Raises:
        LayoutError: the table's width has changed.
    """
    own = bank.table[: shape.rows]
    if table.shape[1] != own.shape[1]:
        raise LayoutError(
            f"expected a block table of {own.shape[1]} columns as in the first draft step, found "
            f"{table.shape[1]}: graphs hold the first one's width"
        )
    real = min(shape.real_reqs, shape.rows, table.shape[0])
    own[:real].copy_(table[:real])
    if real < shape.rows:
        own[real:].zero_()
    return own


def fill_dspark(
    bank: Bank, shape: Shape, table: Tensor, window: int, drafts: int, block_size: int
) -> Tensor:
    """Compute DSpark's visible slots of every token and return this rank's, [per_rank, 1, W]."""
    out = bank.dspark[: shape.shard.padded]
    dspark_indices(
        staged_starts(bank)[: shape.rows + 1],
        staged_lengths(bank)[: shape.rows],
        table[: shape.rows],
        window=window,
        num_draft_tokens=drafts,
        block_size=block_size,
        index_width=bank.size.dspark_width,
        out=out,
    )
    return out[shape.shard.start : shape.shard.end]
