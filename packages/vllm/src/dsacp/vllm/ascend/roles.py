"""Which bank a call belongs to, and the banks of one builder."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsacp.core import BufferRegion, DraftCapacity, round_up
from dsacp.kernels import dspark_index_width
from dsacp.vllm.ascend.banks import Bank, BankSize, RopeTables
from dsacp.vllm.ascend.shapes import Shape

TARGET, FIRST = 0, 1
"""The target's bank and the drafter's first pass; draft index k has bank k + 1."""


def persistent_memory(vllm_config: Any) -> AbstractContextManager[Any]:
    """Return a scope whose allocations survive sleep mode, as the host's own tables do."""
    if not getattr(vllm_config.model_config, "enable_sleep_mode", False):
        return nullcontext()
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    scope: AbstractContextManager[Any] = CaMemAllocator.get_instance().use_allocation_tag(
        CaMemAllocator.sleep_persistent_tag
    )
    return scope


def persistent_size(
    capacity: DraftCapacity,
    role: int,
    columns: int,
    *,
    slot_width: int,
    window: int,
    dspark: bool,
) -> BankSize:
    """Return the bounds of the bank that serves a role for the life of the engine.

    Args:
        capacity: bounds of the serving configuration.
        role: ``TARGET``, ``FIRST`` or ``FIRST`` + draft index.
        columns: of a block table.
        slot_width: integers of one slot in the device's format.
        window: sliding window.
        dspark: whether draft index 1 is a whole block.
    """
    later = role > FIRST
    one_token = later and not dspark
    return BankSize(
        rows=capacity.max_rows if one_token else capacity.max_reqs,
        tokens=capacity.max_rows if one_token else capacity.max_tokens,
        slot_width=slot_width,
        dspark_width=dspark_index_width(window, capacity.num_draft_tokens)
        if later and dspark
        else 0,
        table_width=columns if one_token else 0,
    )


class Banks:
    """The banks of one builder, each made at its first use, which lies before any capture.

    Args:
        name: cache group, for messages.
        capacity: bounds of the serving configuration.
        slot_width: integers of one slot in the device's format.
        window: sliding window.
        dspark: whether the drafter drafts a whole block at once, as draft index 1.
        vllm_config: for the memory that survives sleep mode.
        device: where the buffers live.
    """

    def __init__(
        self,
        name: str,
        capacity: DraftCapacity,
        slot_width: int,
        window: int,
        dspark: bool,
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        self.capacity = capacity
        self._name = name
        self._slot_width = slot_width
        self._window = window
        self._dspark = dspark
        self._config = vllm_config
        self._device = device
        self._made: dict[int, Bank] = {}

    def pick(self, role: int, shape: Shape, tables: RopeTables, table: Tensor) -> Bank:
        """Return the bank of a role, or one of its own for a batch that no graph can hold.

        A prefill that drafts runs K steps over all its tokens, eager: buffers of that size would
        be kept for nothing.
        """
        bank = self._made.get(role)
        if bank is None:
            bank = self._make(role, self._bounds(role, table.shape[1]), tables)
            self._made[role] = bank
        if shape.rows <= bank.size.rows and shape.shard.padded <= bank.size.tokens:
            return bank
        return self._make(role, self._exact(role, shape, table.shape[1]), tables)

    @property
    def made(self) -> Mapping[int, Bank]:
        """The persistent banks so far, by role."""
        return dict(self._made)

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every persistent field."""
        return tuple(region for bank in self._made.values() for region in bank.regions())

    def storages(self) -> tuple[Tensor, ...]:
        """Return the storages of ``regions()``."""
        return tuple(storage for bank in self._made.values() for storage in bank.storages())

    def _make(self, role: int, size: BankSize, tables: RopeTables) -> Bank:
        with persistent_memory(self._config):
            return Bank(self._name, role, size, tables, self._device)

    def _bounds(self, role: int, columns: int) -> BankSize:
        return persistent_size(
            self.capacity,
            role,
            columns,
            slot_width=self._slot_width,
            window=self._window,
            dspark=self._dspark,
        )

    def _exact(self, role: int, shape: Shape, columns: int) -> BankSize:
        tokens = round_up(max(shape.shard.padded, 1), self.capacity.tp_size)
        return replace(self._bounds(role, columns), rows=max(shape.rows, 1), tokens=tokens)
