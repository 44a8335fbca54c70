"""Bytes that our builders will hold, from the code that allocates them, on torch's meta device."""

from collections.abc import Iterable

import torch

from dsacp.core import DraftCapacity
from dsacp.vllm.ascend.banks import Bank
from dsacp.vllm.ascend.roles import FIRST, TARGET, persistent_size

META = torch.device("meta")


def group_bytes(
    capacity: DraftCapacity,
    roles: Iterable[int],
    rotary_dims: Iterable[int],
    columns: int,
    *,
    slot_width: int = 2,
    window: int = 128,
    dspark: bool = False,
) -> int:
    """Return the bytes of one KV group's banks on one rank.

    Args:
        capacity: bounds of the serving configuration.
        roles: the banks, see ``target_roles`` and ``draft_roles``.
        rotary_dims: dimensions of every RoPE configuration that rotates tokens.
        columns: of a block table.
        slot_width: 2 on A2 and A3, 1 on A5.
        window: sliding window.
        dspark: whether the drafter drafts a whole block at once.
    """
    row = {
        str(index): (torch.empty(1, dim, device=META), torch.empty(1, dim, device=META))
        for index, dim in enumerate(rotary_dims)
    }
    total = 0
    for role in roles:
        size = persistent_size(
            capacity, role, columns, slot_width=slot_width, window=window, dspark=dspark
        )
        total += Bank("memory", role, size, row, META).nbytes
    return total


def target_roles() -> tuple[int, ...]:
    """Return the banks of a group that no draft layer uses."""
    return (TARGET,)


def draft_roles(num_draft_tokens: int, dspark: bool = False) -> tuple[int, ...]:
    """Return the banks of the draft layers' group under runner v1: target, and steps 0..K-1.

    DSpark's one block arrives as draft index 1.
    """
    if dspark:
        return TARGET, FIRST, FIRST + 1
    return (TARGET, *range(FIRST, FIRST + num_draft_tokens))
