"""Cache slots of tokens in torch: the oracle of the Triton kernel."""

import torch
from torch import Tensor

INT32_MAX = 0x7FFFFFFF


def flat_slots(position: Tensor, row: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Return int32 slots; -1 without one, see ``slot_mapping``.

    ``row`` is clamped into the table: a token of no request is marked by its position.
    """
    rows, width = block_table.shape
    if block_size & (block_size - 1):
        column = torch.div(position, block_size, rounding_mode="floor")
        inside = position.remainder(block_size)
    else:
        # i32 shifts and masks stay vector instructions where // and % do not.
        column = position >> (block_size.bit_length() - 1)
        inside = position & (block_size - 1)
    block = block_table[row.clamp(0, rows - 1), column.clamp(0, width - 1)]
    # The sign bit collects every reason to have no slot; ORing its spread makes the slot -1.
    invalid = (block | position).bitwise_or_((width - 1) - column)
    # A slot past int32 wraps in the sum below; its block says so before.
    last_block, last_inside = divmod(INT32_MAX, block_size)
    invalid = invalid.bitwise_or_(last_block - block) >> 31
    if last_inside < block_size - 1:
        invalid.masked_fill_((block == last_block) & (inside > last_inside), -1)
    return inside.add_(block, alpha=block_size).bitwise_or_(invalid)


def slot_mapping(
    positions: Tensor,
    token_to_req: Tensor,
    block_table: Tensor,
    block_size: int,
    out: Tensor,
    block_offset: bool,
) -> None:
    """Write the slot of every token; see the package function."""
    known = (block_table.shape[0] - 1 - token_to_req) | token_to_req
    slots = flat_slots(positions | (known >> 31), token_to_req, block_table, block_size)
    if not block_offset:
        out.copy_(slots)
        return
    # Floor division keeps -1 recognisable: block -1, last offset (upstream U11).
    out[:, 0] = torch.div(slots, block_size, rounding_mode="floor")
    out[:, 1] = slots.remainder(block_size)
