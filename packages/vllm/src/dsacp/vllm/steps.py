"""Persistent buffers of all draft steps of one builder instance. Imports no vLLM."""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dsacp.core import DraftCapacity, TokenShard, Uncopied
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec, StepMetadata
from dsacp.rope_proxy import RopeRegistry
from dsacp.vllm.dry_run import Sizes, Trial, first_batches, guarded_trials, later_batches
from dsacp.vllm.settings import Blocker
from dsacp.vllm.window import LocalWindow, RankRows, WindowBank, WindowKernels

GROUP = "swa"
TRIAL_BLOCK = 64
"""Tokens of a page where no engine says how many."""


def sizes_of(vllm_config: Any, tp_size: int) -> Sizes:
    """Read what bounds an engine's batches from vLLM's configuration."""
    scheduler = vllm_config.scheduler_config
    captures = getattr(vllm_config.compilation_config, "cudagraph_capture_sizes", None) or ()
    return Sizes(
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        vllm_config.speculative_config.num_speculative_tokens,
        tp_size,
        getattr(getattr(vllm_config, "model_config", None), "max_model_len", 1),
        tuple(sorted(captures)),
    )


def make_capacity(vllm_config: Any, tp_size: int) -> DraftCapacity:
    """Derive buffer bounds from the engine's configuration."""
    return capacity_of(sizes_of(vllm_config, tp_size))


def capacity_of(sizes: Sizes) -> DraftCapacity:
    """Derive buffer bounds from what bounds an engine's batches.

    vLLM pads requests up to its capture sizes, which it chooses itself.
    """
    return DraftCapacity.from_config(
        max(sizes.max_num_seqs, *sizes.capture_sizes, 0),
        sizes.max_num_batched_tokens,
        sizes.draft_tokens,
        sizes.tp_size,
        layout="requests",
    )


def size_blockers(sizes: Sizes) -> list[Blocker]:
    """Return the batches of a configuration that our buffers refuse, tried on the CPU.

    The first and the last rank are tried, without an engine; its own start tries each.
    """
    ranks = dict.fromkeys((0, sizes.tp_size - 1))
    return guarded_trials(lambda: (trial for rank in ranks for trial in _size_trials(sizes, rank)))


def _size_trials(sizes: Sizes, rank: int) -> Iterator[Trial]:
    capacity = capacity_of(sizes)
    cache = make_cache(capacity, TRIAL_BLOCK, rank, "cpu", sizes.max_model_len, v2=False)
    columns = -(-sizes.max_model_len // TRIAL_BLOCK)
    cache.bind({GROUP: torch.zeros(capacity.max_reqs, columns, dtype=torch.int32)})
    steps = [(0, batch) for batch in first_batches(sizes)]
    later = dict.fromkeys((1, capacity.num_draft_tokens - 1))
    steps += [(index, batch) for index in later if index > 0 for batch in later_batches(sizes)]
    for index, batch in steps:
        starts = torch.tensor([0, *accumulate(batch.queries)], dtype=torch.int32)
        lengths = torch.tensor(batch.lengths, dtype=torch.int32)
        given = DraftBatch(len(batch.queries), sum(batch.queries), starts, lengths)
        build = partial(cache.build_for_drafting, given, index)
        yield Trial(f"{batch.name} in step {index} on rank {rank}", build, lambda: None)


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

    def fill(
        self, host: Any, bank: int, drafts: Tensor | None = None
    ) -> tuple[StepMetadata, Tensor]:
        """Compute a step from vLLM's common metadata; returns it and its int64 slots [Tp].

        Args:
            host: the batch, advanced to the step.
            bank: the draft step.
            drafts: int32 [>= num_reqs], 0 where a request takes no part in later steps.

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
            drafts=drafts,
        )
        step = self.cache.build_for_drafting(batch, bank)
        computed = step.groups[GROUP].slot_mapping
        assert computed is not None, "a window group has raw slots"
        return step, self._banks[bank].write_slots(computed, host.slot_mapping)

    def local(
        self, step: StepMetadata, bank: int, num_reqs: int, replay_start: Tensor
    ) -> LocalWindow:
        """Compute the rank's rows of a filled step of ``num_reqs`` requests in place."""
        rows = RankRows.of(step.groups[GROUP], num_reqs)
        return self._banks[bank].build(
            self._kernels, rows, step.shard, self._block_size, replay_start
        )
