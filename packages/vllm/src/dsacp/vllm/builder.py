"""Our metadata builder for the draft layers, a subclass of whatever vLLM's platform uses."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsacp.core import DraftCapacity, TokenShard, round_up
from dsacp.drafting_cache import DraftBatch, DraftMetadataBuilder, GroupSpec, StepMetadata
from dsacp.rope_proxy import RopeRegistry
from dsacp.vllm.report import Reporter
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


def whole_table(table: Tensor, rows: int) -> Tensor:
    """Widen a batch's slice of the host's persistent block table to all its rows."""
    room = table.untyped_storage().nbytes() // table.element_size() - table.storage_offset()
    fit = (room - table.shape[1]) // max(table.stride(0), 1) + 1
    return table.as_strided((min(rows, fit), table.shape[1]), table.stride())


@lru_cache
def make_metadata_class(stock: type[Any]) -> type[Any]:
    """Add our rows to vLLM's metadata dataclass."""

    @dataclass
    class DsacpWindowMetadata(stock):  # type: ignore[misc, valid-type]
        """Stock window metadata, plus the rank's rows and what an in-place update reads again."""

        local: LocalWindow | None = None
        host: Any = None
        bank: int = 0

    return DsacpWindowMetadata


@lru_cache
def make_builder_class(stock: type[Any], metadata_cls: type[Any]) -> type[Any]:
    """Subclass the platform's window builder."""
    window_metadata = make_metadata_class(metadata_cls)

    class DsacpWindowBuilder(stock):  # type: ignore[misc, valid-type]
        """Address-stable window metadata, one set of buffers a draft step.

        vLLM makes two instances a rank: on the target's side (``build`` for the whole batch) and
        on the drafter's. Each has its own buffers.
        """

        supports_draft_decode_metadata_update: ClassVar[bool] = True
        supports_update_block_table: ClassVar[bool] = True

        def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
            from vllm.distributed import get_tensor_model_parallel_rank as rank
            from vllm.distributed import get_tensor_model_parallel_world_size as world

            capacity = make_capacity(vllm_config, world())
            steps = capacity.num_draft_tokens
            v2 = bool(getattr(vllm_config, "use_v2_model_runner", False))
            self.cache = DraftMetadataBuilder(
                capacity,
                [GroupSpec(GROUP, self.block_size)],
                RopeRegistry(),
                TokenShard(0, world(), rank()),
                device,
                max_model_len=self.max_model_len,
                overflow="saturate" if v2 else "reset",
                padding="repeat",
            )
            # a stock builder owns one set of buffers; a draft step needs its own
            self._stock = [super(), *(
                stock(kv_cache_spec, layer_names, vllm_config, device) for _ in range(steps - 1)
            )]
            tokens = [capacity.max_tokens] + [round_up(capacity.max_tokens, world())] * (steps - 1)
            self._banks = [WindowBank(n, world(), self.window_size, device) for n in tokens]
            self.reporter = Reporter.from_environment(self.cache, layer_names, v2)

        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: Any,
            fast_build: bool = False,
            **extra: Any,
        ) -> Any:
            """Metadata of a whole batch: the target's, or V2's first draft decode step."""
            return self._build("build", common_attn_metadata, 0, fast_build, extra)

        def build_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
            """Metadata of one V1 draft step; the host has advanced the batch to it."""
            return self._build("build_for_drafting", common_attn_metadata, draft_index, True, {})

        def update_block_table(self, metadata: Any, blk_table: Tensor, slot_mapping: Tensor) -> Any:
            """Metadata of the same batch for this group's own table, in this builder's buffers."""
            host = metadata.host.replace(
                block_table_tensor=blk_table,
                slot_mapping=slot_mapping,
                _token_to_req_indices_cache=None,
            )
            extra = {"replay_start": metadata.replay_start}
            return self._build("update_block_table", host, metadata.bank, True, extra)

        def update_draft_decode_metadata(self, metadata: Any) -> None:
            """Recompute V2's metadata in place from the host's advanced device buffers."""
            bank, host = metadata.bank, metadata.host
            step = self._step(host, bank)
            self._banks[bank].write_slots(step.groups[GROUP].slot_mapping, host.slot_mapping)
            self._stock[bank].update_draft_decode_metadata(metadata)
            self._local(step, bank, metadata.slot_mapping, metadata.replay_start)
            self.reporter.built("update_draft_decode_metadata", bank, metadata, step)

        def _build(self, hook: str, host: Any, bank: int, fast: bool, extra: dict[str, Any]) -> Any:
            step = self._step(host, bank)
            group = step.groups[GROUP]
            slots = self._banks[bank].write_slots(group.slot_mapping, host.slot_mapping)
            count = host.num_reqs
            ours = host.replace(
                query_start_loc=group.query_start_loc[: count + 1],
                seq_lens=group.seq_lens[:count],
                slot_mapping=slots[: host.slot_mapping.shape[0]],
                # the proposer advances the batch in place and leaves step 0's map behind
                _token_to_req_indices_cache=None,
                _num_computed_tokens_cache=None,
            )
            stock_metadata = self._stock[bank].build(0, ours, fast_build=fast, **extra)
            local = self._local(step, bank, slots, stock_metadata.replay_start)
            given = {f.name: getattr(stock_metadata, f.name) for f in fields(stock_metadata)}
            metadata = window_metadata(**given, local=local, host=host.replace(), bank=bank)
            self.reporter.built(hook, bank, metadata, step)
            return metadata

        def _step(self, host: Any, bank: int) -> StepMetadata:
            table = whole_table(host.block_table_tensor, self.cache.config.capacity.max_reqs)
            self.cache.bind({GROUP: table})
            batch = DraftBatch(
                num_reqs=host.num_reqs,
                num_tokens=host.num_actual_tokens,
                query_start_loc=host.query_start_loc,
                seq_lens=host.seq_lens,
            )
            return self.cache.build_for_drafting(batch, bank)

        def _local(
            self, step: StepMetadata, bank: int, slots: Tensor, replay_start: Tensor
        ) -> LocalWindow:
            import vllm.v1.attention.backends.mla.sparse_swa as swa

            kernels = WindowKernels(
                swa.compute_token_to_req_indices, swa._COMPUTE_SWA_INDICES_AND_LENS_KERNEL
            )
            return self._banks[bank].build(
                kernels, step.groups[GROUP], step.shard, self._banks[bank].slots[: step.shard.padded],
                self.block_size, replay_start,
            )

    return DsacpWindowBuilder


def make_backend_class(stock: type[Any], builder: type[Any]) -> type[Any]:
    """A backend of its own name, so that vLLM gives the draft layers their own group."""

    class DsacpWindowBackend(stock):  # type: ignore[misc, valid-type]
        """Window backend of the draft layers."""

        @staticmethod
        def get_name() -> str:
            return "DSACP_SPARSE_SWA"

        @staticmethod
        def get_builder_cls() -> type[Any]:
            return builder

    return DsacpWindowBackend
