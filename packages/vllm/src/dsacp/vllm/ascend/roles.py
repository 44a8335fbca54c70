"""Which bank a call belongs to, and the banks of one builder."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsacp.core import BufferRegion, CapacityError, DraftCapacity, Uncopied, round_up
from dsacp.graph import is_recording
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


class Banks(Uncopied):
    """The banks of one builder, each made at its first use, which must lie before any capture.

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
        self.block = dspark
        self._name = name
        self._slot_width = slot_width
        self._window = window
        self._config = vllm_config
        self._device = device
        self._made: dict[int, Bank] = {}
        self._eager: dict[int, Bank] = {}

    def pick(
        self, role: int, shape: Shape, tables: RopeTables, columns: int, capturing: bool = False
    ) -> Bank:
        """Return the bank of a role, or its larger eager one for a batch that no graph can hold.

        Args:
            role: whose bank.
            shape: the step.
            tables: RoPE tables.
            columns: of the host's block table.
            capturing: whether the host says that a graph will hold the addresses.

        Raises:
            CapacityError: a graph would hold an eager bank, or the first use lies in a capture.
        """
        bank = self._made.get(role)
        if bank is None:
            bank = self._make(role, self._bounds(role, columns), tables)
            self._made[role] = bank
        if bank.size.holds(shape.rows, shape.shard.padded):
            return bank
        if capturing or is_recording(self._device):
            raise CapacityError(
                f"a captured step of {self._name} needs {shape.rows} requests and "
                f"{shape.shard.padded} tokens, bank {role} holds {bank.size.rows} and "
                f"{bank.size.tokens}: name this size in cudagraph_capture_sizes"
            )
        return self._grown(role, shape, tables, columns)

    @property
    def made(self) -> Mapping[int, Bank]:
        """The persistent banks so far, by role."""
        return dict(self._made)

    @property
    def eager(self) -> Mapping[int, Bank]:
        """The banks of eager steps that no capture holds, by role."""
        return dict(self._eager)

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every persistent field."""
        return tuple(region for bank in self._made.values() for region in bank.regions())

    def storages(self) -> tuple[Tensor, ...]:
        """Return the storages of ``regions()``."""
        return tuple(storage for bank in self._made.values() for storage in bank.storages())

    def _make(self, role: int, size: BankSize, tables: RopeTables) -> Bank:
        if is_recording(self._device):
            raise CapacityError(
                f"expected bank {role} of {self._name} to be there before a graph is captured, "
                "found its first use inside one, whose memory would then hold it: warm up first"
            )
        with persistent_memory(self._config):
            return Bank(self._name, role, size, tables, self._device)

    def _grown(self, role: int, shape: Shape, tables: RopeTables, columns: int) -> Bank:
        """Return the eager bank of a role; it only grows, so a busy engine soon makes none.

        A prefill that drafts runs K steps over all its tokens.
        """
        bank, rows, tokens = self._eager.get(role), shape.rows, shape.shard.padded
        if bank is not None:
            if bank.size.holds(rows, tokens):
                return bank
            rows, tokens = max(rows, bank.size.rows), max(tokens, bank.size.tokens)
        bounds = self._bounds(role, columns)
        size = replace(
            bounds,
            rows=max(rows, bounds.rows),
            tokens=eager_tokens(self.capacity, max(tokens, bounds.tokens)),
        )
        self._eager[role] = self._make(role, size, tables)
        return self._eager[role]

    def _bounds(self, role: int, columns: int) -> BankSize:
        return persistent_size(
            self.capacity,
            role,
            columns,
            slot_width=self._slot_width,
            window=self._window,
            dspark=self.block,
        )


def eager_tokens(capacity: DraftCapacity, tokens: int) -> int:
    """Return the token rows of an eager bank: the next power of two, at most the whole budget."""
    wanted = min(1 << (tokens - 1).bit_length(), max(tokens, capacity.max_tokens))
    return round_up(wanted, capacity.tp_size)
