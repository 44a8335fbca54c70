"""Our metadata builder for the draft layers, a subclass of whatever vLLM's platform uses."""

from collections import Counter
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar

from torch import Tensor

from dsacp.vllm.report import Reporter
from dsacp.vllm.steps import GROUP, StepBuffers, make_cache, make_capacity
from dsacp.vllm.window import LocalWindow, WindowKernels


def window_kernels() -> WindowKernels:
    """Look vLLM's launchers up where its own builder does."""
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    return WindowKernels(swa.compute_token_to_req_indices, swa._COMPUTE_SWA_INDICES_AND_LENS_KERNEL)


class DsacpBuilderMixin:
    """What our builder does differently; stands before a stock window builder.

    vLLM makes two instances a rank: on the target's side (``build`` for the whole batch) and on
    the drafter's. Each has its own buffers, and each draft step its own within them.
    """

    supports_draft_decode_metadata_update: ClassVar[bool] = True
    supports_update_block_table: ClassVar[bool] = True
    stock_class: ClassVar[type[Any]]
    metadata_class: ClassVar[type[Any]]
    block_size: int
    window_size: int
    max_model_len: int

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # type: ignore[call-arg]
        from vllm.distributed import get_tensor_model_parallel_rank as rank
        from vllm.distributed import get_tensor_model_parallel_world_size as world

        v2 = bool(getattr(vllm_config, "use_v2_model_runner", False))
        capacity = make_capacity(vllm_config, world())
        cache = make_cache(capacity, self.block_size, rank(), device, self.max_model_len, v2)
        self.buffers = StepBuffers(cache, self.block_size, self.window_size, window_kernels())
        # a stock builder owns one set of buffers; a draft step needs its own
        self._stock: list[Any] = [
            super(),
            *(
                self.stock_class(kv_cache_spec, layer_names, vllm_config, device)
                for _ in range(capacity.num_draft_tokens - 1)
            ),
        ]
        self.reporter = Reporter.from_environment(cache, layer_names, v2)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002 - always 0, kept by vLLM's contract
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
        host = metadata.host.replace(block_table_tensor=blk_table, slot_mapping=slot_mapping)
        extra = {"replay_start": metadata.replay_start}
        return self._build("update_block_table", host, metadata.bank, True, extra)

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Recompute V2's metadata in place from the host's advanced device buffers.

        Launches only, so that a speculator may record it, under context parallelism too.
        """
        bank = metadata.bank
        step, _ = self.buffers.fill(metadata.host, bank)
        self._stock[bank].update_draft_decode_metadata(metadata)
        self.buffers.local(step, bank, metadata.host.num_reqs, metadata.replay_start)
        self.reporter.built("update_draft_decode_metadata", bank, metadata, step)

    def _build(self, hook: str, host: Any, bank: int, fast: bool, extra: dict[str, Any]) -> Any:
        step, slots = self.buffers.fill(host, bank)
        group = step.groups[GROUP]
        ours = host.replace(
            query_start_loc=group.query_start_loc[: host.num_reqs + 1],
            seq_lens=group.seq_lens[: host.num_reqs],
            slot_mapping=slots[: host.slot_mapping.shape[0]],
            # the proposer advances the batch in place and leaves step 0's values behind
            _token_to_req_indices_cache=None,
            _num_computed_tokens_cache=None,
        )
        stock = self._stock[bank].build(0, ours, fast_build=fast, **extra)
        given = {item.name: getattr(stock, item.name) for item in fields(stock)}
        local = self.buffers.local(step, bank, host.num_reqs, stock.replay_start)
        metadata = self.metadata_class(
            **given, local=local, host=host.replace(), bank=bank, attention=self.reporter.attention
        )
        self.reporter.built(hook, bank, metadata, step)
        return metadata


@lru_cache
def make_metadata_class(stock: Any) -> type[Any]:
    """Add our rows to vLLM's metadata dataclass."""

    @dataclass
    class DsacpWindowMetadata(stock):  # type: ignore[misc]
        """Stock window metadata, plus the rank's rows and what an in-place update reads again.

        ``attention`` counts what layers did with it; one counter for all steps of a builder.
        """

        local: LocalWindow | None = None
        host: Any = None
        bank: int = 0
        attention: Counter[str] = field(default_factory=Counter)

    return DsacpWindowMetadata


@lru_cache
def make_builder_class(stock: Any, metadata: Any) -> Any:
    """Put our builder before the platform's window builder."""
    body = {"stock_class": stock, "metadata_class": make_metadata_class(metadata)}
    return type("DsacpWindowBuilder", (DsacpBuilderMixin, stock), body)


@lru_cache
def make_backend_class(stock: Any, builder: Any) -> type[Any]:
    """A backend of its own name, so that vLLM gives the draft layers their own group."""

    class DsacpWindowBackend(stock):  # type: ignore[misc]
        """Window backend of the draft layers."""

        @staticmethod
        def get_name() -> str:
            return "DSACP_SPARSE_SWA"

        @staticmethod
        def get_builder_cls() -> Any:
            return builder

    return DsacpWindowBackend
