"""Draft steps of one token a request: everything that follows from lengths, in one launch."""

import torch
from torch import Tensor

from dsacp.core import LayoutError
from dsacp.kernels import draft_steps, stage_inputs
from dsacp.vllm.ascend.banks import Bank
from dsacp.vllm.ascend.fill import staged_lengths, staged_starts
from dsacp.vllm.ascend.shapes import Shape

NO_LIMIT = 2**31 - 1
"""The host has applied ``max_model_len`` to its positions before it asks for a step."""


def lengths_of_positions(bank: Bank, shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return starts and lengths of one-token requests, from positions alone.

    The host's own lengths still count rejected tokens (upstream U26); the position of a real
    row is one less than the length that its query may see. A request that the host has reset at
    ``max_model_len`` stands at position 0, so its length is 1; its slot is the host's -1.

    Args:
        bank: a one-token bank; the lengths are written into it.
        shape: the step.
        positions: integers [>= real_reqs].

    Returns:
        int32 [rows + 1] and int32 [rows] of the bank.

    Raises:
        LayoutError: the positions are no vector that holds every real row; nothing is written.
    """
    starts, lengths = bank.words("one_by_one"), bank.words("lengths")
    real = min(shape.real_reqs, shape.rows)
    # `out=` below would resize its view to any other shape, over the fields beside it
    if positions.dim() != 1 or positions.shape[0] < real:
        raise LayoutError(
            f"expected positions [>= {real}], one a real request, found "
            f"{list(positions.shape)}: pass the drafter's own position buffer"
        )
    torch.add(positions[:real], 1, out=lengths[:real])
    if real < shape.rows:
        lengths[real : shape.rows].zero_()
    return starts, lengths


def fill_one_token(
    bank: Bank, shape: Shape, query_start_loc: Tensor, seq_lens: Tensor, block_size: int
) -> None:
    """Write starts, lengths, positions and RoPE rows of a step; every row of the bank is computed.

    Args:
        bank: a one-token bank.
        shape: the step; rows past it repeat the last start and have length 0.
        query_start_loc: int32 [>= rows + 1].
        seq_lens: int32 [>= rows], 0 on padding, which stays at position 0.
        block_size: slots of a page.

    Raises:
        LayoutError: the bank is not a one-token bank.
    """
    launch = bank.launch
    if launch is None:
        raise LayoutError(
            f"expected a bank of one-token steps, found one of {bank.size}: pick a later role"
        )
    rows, inputs = bank.size.rows, bank.words("inputs")
    starts, lengths = (tensor.to(torch.int32) for tensor in (query_start_loc, seq_lens))
    stage_inputs(starts, lengths, None, shape.rows, inputs, rows)
    words, rope = bank.storages()
    draft_steps(
        staged_starts(bank),
        staged_lengths(bank),
        inputs[2 * rows + 2 :],
        inputs[:1],
        [bank.table],
        [cos for cos, _ in bank.tables.values()],
        [sin for _, sin in bank.tables.values()],
        launch.pointers,
        words,
        launch.layout,
        rope,
        launch.rope_layout,
        block_sizes=[block_size],
        row_counts=[rows],
        token_counts=[shape.tokens],
        first_step=0,
        tp_size=shape.shard.tp_size,
        tp_rank=shape.shard.tp_rank,
        pad_query_len=1,
        max_model_len=NO_LIMIT,
        saturate=False,
        repeat_padding=True,
        causal=True,
    )
    padded = shape.shard.padded
    bank.positions[:padded].copy_(bank.words("positions")[:padded])
