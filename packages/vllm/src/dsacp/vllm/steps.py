"""Persistent buffers of all draft steps of one builder instance. Imports no vLLM."""

from typing import Any

import torch
from torch import Tensor

from dsacp.core import DraftCapacity, TokenShard, Uncopied
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec, StepMetadata
from dsacp.rope_proxy import RopeRegistry
from dsacp.vllm.window import LocalWindow, WindowBank, WindowKernels

GROUP = "swa"


def make_capacity(vllm_config: Any, tp_size: int) -> DraftCapacity:
    """Derive buffer bounds from the engine's configuration.

    vLLM pads requests up to its capture sizes, which it chooses itself.
    """
    scheduler = vllm_config.scheduler_config
    sizes = getattr(vllm_config.compilation_config, "cudagraph_capture_sizes", None) or [0]
    return DraftCapacity.from_config(
        max(scheduler.max_num_seqs, *sizes),
        scheduler.max_num_batched_tokens,
        vllm_config.speculative_config.num_speculative_tokens,
        tp_size,
        layout="requests",
    )


def make_cache(
    capacity: DraftCapacity,
    block_size: int,
    rank: int,
    device: torch.device | str,
    max_model_len: int,
    v2: bool,
) -> DraftMetadataBuilder:
    """Make the metadata builder of one window group as vLLM's runners need it.

    No RoPE configuration is registered: vLLM rotates inside its kernels.
    """
    return DraftMetadataBuilder(
        capacity,
        [GroupSpec(GROUP, block_size)],
        RopeRegistry(),
        TokenShard(0, capacity.tp_size, rank),
        device,
        max_model_len=max_model_len,
        overflow="saturate" if v2 else "reset",
        padding="repeat",
    )


def whole_table(table: Tensor, rows: int) -> Tensor:
    """Widen a batch's slice of the host's persistent block table to all its rows."""
    room = table.untyped_storage().nbytes() // table.element_size() - table.storage_offset()
    fit = (room - table.shape[1]) // max(table.stride(0), 1) + 1
    return table.as_strided((min(rows, fit), table.shape[1]), table.stride())


class StepBuffers(Uncopied):
    """Metadata and window rows of every draft step, each in its own buffers.

    Args:
        cache: the metadata builder.
        block_size: tokens of one window page.
        window: sliding window.
        kernels: vLLM's launchers.
    """

    def __init__(
        self, cache: DraftMetadataBuilder, block_size: int, window: int, kernels: WindowKernels
    ) -> None:
        capacity = cache.config.capacity
        self.cache = cache
        self._block_size = block_size
        self._kernels = kernels
        sizes = [capacity.max_tokens, *[capacity.max_rows] * (capacity.num_draft_tokens - 1)]
        device = cache.config.device
        self._banks = [WindowBank(size, capacity.tp_size, window, device) for size in sizes]

    def fill(self, host: Any, bank: int) -> tuple[StepMetadata, Tensor]:
        """Compute a step from vLLM's common metadata; returns it and its int64 slots [Tp].

        Raises:
            StaleAddressError: the host's block table moved since the first build.
        """
        rows = self.cache.config.capacity.max_reqs
        self.cache.bind({GROUP: whole_table(host.block_table_tensor, rows)})
        batch = DraftBatch(
            num_reqs=host.num_reqs,
            num_tokens=host.num_actual_tokens,
            query_start_loc=host.query_start_loc,
            seq_lens=host.seq_lens,
        )
        step = self.cache.build_for_drafting(batch, bank)
        computed = step.groups[GROUP].slot_mapping
        assert computed is not None, "a window group has raw slots"
        return step, self._banks[bank].write_slots(computed, host.slot_mapping)

    def local(
        self, step: StepMetadata, bank: int, num_reqs: int, replay_start: Tensor
    ) -> LocalWindow:
        """Compute the rank's rows of a filled step of ``num_reqs`` requests in place."""
        return self._banks[bank].build(
            self._kernels, step.groups[GROUP], step.shard, num_reqs, self._block_size, replay_start
        )
