"""Our metadata builder for the draft layers, a subclass of whatever vLLM's platform uses.

It never ends an engine that the stock builder could serve. A dry run over the configuration's
extremes decides at start-up, on all ranks together; where it fails, every hook is the stock
builder's. A build that fails later is made from the framework's own numbers instead, and so are all
that follow; only where a graph already holds our buffers the error goes on, for a replay would read
an earlier batch from them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsacp.core import TokenShard
from dsacp.graph import is_recording
from dsacp.vllm.aside import engine_of
from dsacp.vllm.drafting import DraftMask
from dsacp.vllm.dry_run import Batch, Trial, first_batches, guarded_trials, later_batches
from dsacp.vllm.report import Reporter
from dsacp.vllm.settings import Blocker
from dsacp.vllm.steps import GROUP, StepBuffers, make_cache, make_capacity, sizes_of
from dsacp.vllm.window import LocalWindow, WindowKernels, plain_rows


def window_kernels() -> WindowKernels:
    """Look vLLM's launchers up where its own builder does."""
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    return WindowKernels(swa.compute_token_to_req_indices, swa._COMPUTE_SWA_INDICES_AND_LENS_KERNEL)


def all_ranks(fine: bool, tp_size: int) -> bool:
    """Return whether every rank of the tensor-parallel group is fine; they must act alike."""
    if tp_size == 1:
        return fine
    from vllm.distributed import get_tp_group

    verdict = torch.tensor([int(fine)], dtype=torch.int32)
    group = get_tp_group().cpu_group
    torch.distributed.all_reduce(verdict, torch.distributed.ReduceOp.MIN, group=group)
    return bool(verdict.item())


class DsacpBuilderMixin:
    """What our builder does differently; stands before a stock window builder.

    vLLM makes two instances a rank: on the target's side (``build`` for the whole batch) and on
    the drafter's. Each has its own buffers, and each draft step its own within them.

    Attributes:
        drafts_later: whether V2's speculator builds its steps after the first one here.
    """

    supports_draft_decode_metadata_update: ClassVar[bool] = True
    supports_update_block_table: bool = True
    stock_class: ClassVar[type[Any]]
    metadata_class: ClassVar[type[Any]]
    block_size: int
    window_size: int
    max_model_len: int
    device: torch.device

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # type: ignore[call-arg]
        from vllm.distributed import get_tensor_model_parallel_rank as rank
        from vllm.distributed import get_tensor_model_parallel_world_size as world

        self.drafts_later = self._captured = False
        self._engine = engine_of(vllm_config)
        self._v2 = bool(getattr(vllm_config, "use_v2_model_runner", False))
        self._shard = TokenShard(0, world(), rank())
        self._sizes = sizes_of(vllm_config, self._shard.tp_size)
        arguments = (kv_cache_spec, layer_names, vllm_config, device)
        reasons = guarded_trials(partial(self._trials, arguments))
        if not reasons:
            # what the dry run made held its own block table
            reasons = guarded_trials(
                lambda: iter(self._prepare(arguments, Reporter.from_environment))
            )
        self._serves = all_ranks(not reasons, self._shard.tp_size)
        self._gave_up = False
        if not self._serves:
            self.supports_update_block_table = False
            other = Blocker("another rank that cannot be served", "see its line")
            self._engine.stand_aside(reasons or [other])

    def _prepare(self, arguments: Any, reporter: Callable[..., Reporter]) -> tuple[()]:
        """Make the buffers of every draft step."""
        kv_cache_spec, layer_names, vllm_config, device = arguments
        tp_size, tp_rank = self._shard.tp_size, self._shard.tp_rank
        capacity = make_capacity(vllm_config, tp_size)
        cache = make_cache(capacity, self.block_size, tp_rank, device, self.max_model_len, self._v2)
        self._kernels = window_kernels()
        self.buffers = StepBuffers(cache, self.block_size, self.window_size, self._kernels)
        self._mask = DraftMask(capacity.max_reqs, device)
        # a stock builder owns one set of buffers; a draft step needs its own
        self._stock: list[Any] = [
            super(),
            *(
                self.stock_class(kv_cache_spec, layer_names, vllm_config, device)
                for _ in range(capacity.num_draft_tokens - 1)
            ),
        ]
        self.reporter = reporter(cache, layer_names, self._v2)
        return ()

    def _trials(self, arguments: Any) -> Iterator[Trial]:
        """Yield every entry point with the extremes of the batches that it may be given."""
        self._prepare(arguments, Reporter)
        columns = -(-self.max_model_len // self.block_size)
        rows = self.buffers.cache.config.capacity.max_reqs
        table = torch.zeros(rows, columns, dtype=torch.int32, device=self.device)
        for batch in first_batches(self._sizes):
            host = make_common(batch, table)
            for hook in ("build", "build_for_drafting", "update_block_table"):
                yield self._trial(hook, batch, host, 0)
        for bank in range(1, len(self._stock)):
            for batch in later_batches(self._sizes):
                hook = "update_draft_decode_metadata" if self._v2 else "build_for_drafting"
                yield self._trial(hook, batch, make_common(batch, table), bank)

    def _trial(self, hook: str, batch: Batch, host: Any, bank: int) -> Trial:
        def ours() -> None:
            metadata = self._ours(hook, host, bank, False, {})
            if hook.startswith("update"):
                self._update(metadata)

        stock = partial(self._stock[bank].build, 0, host.replace())
        return Trial(f"{hook}[{bank}] of {batch.name}", ours, stock)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002 - always 0, kept by vLLM's contract
        common_attn_metadata: Any,
        fast_build: bool = False,
        **extra: Any,
    ) -> Any:
        """Metadata of a whole batch: the target's, or V2's first draft decode step."""
        bank = 1 if self.drafts_later and self._serves and len(self._stock) > 1 else 0
        return self._build("build", common_attn_metadata, bank, fast_build, extra)

    def build_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
        """Metadata of one V1 draft step; the host has advanced the batch to it."""
        return self._build("build_for_drafting", common_attn_metadata, draft_index, True, {})

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        """Metadata that a graph will hold, as of a dummy batch."""
        self._captured = True
        return super().build_for_cudagraph_capture(common_attn_metadata)  # type: ignore[misc]

    def update_block_table(self, metadata: Any, blk_table: Tensor, slot_mapping: Tensor) -> Any:
        """Metadata of the same batch for this group's own table, in this builder's buffers."""
        host = metadata.host.replace(block_table_tensor=blk_table, slot_mapping=slot_mapping)
        extra = {"replay_start": metadata.replay_start}
        return self._build("update_block_table", host, metadata.bank, True, extra)

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Recompute V2's metadata in place from the host's advanced device buffers.

        Launches only, so that a speculator may record it, under context parallelism too.
        """
        if not self._serves:
            super().update_draft_decode_metadata(metadata)  # type: ignore[misc]
            return
        self._captured = self._captured or is_recording(self.device)
        if not self._gave_up:
            try:
                self._update(metadata)
                return
            except Exception as error:
                self._give_up("update_draft_decode_metadata", error)
        self._plain_update(metadata)

    def _build(self, hook: str, host: Any, bank: int, fast: bool, extra: dict[str, Any]) -> Any:
        if not self._serves:
            return super().build(0, host, fast_build=fast, **extra)  # type: ignore[misc]
        if not self._gave_up:
            try:
                return self._ours(hook, host, bank, fast, extra)
            except Exception as error:
                self._give_up(hook, error)
        return self._plain(host, bank, fast, extra)

    def _give_up(self, hook: str, error: Exception) -> None:
        """Leave this and all later builds to the framework's numbers, unless a graph has ours.

        Raises:
            Exception: ``error``, where a replay would read an earlier batch from our buffers.
        """
        if self._captured or is_recording(self.device):
            error.add_note("dsacp cannot stand aside: a graph of this engine holds its buffers")
            raise error
        self._gave_up = True
        found = f"a {hook} that failed while serving ({type(error).__name__}: {error})"
        remedy = "report this line; drafts are built from the framework's own numbers from here on"
        self._engine.stand_aside([Blocker(found, remedy)])

    def _ours(self, hook: str, host: Any, bank: int, fast: bool, extra: dict[str, Any]) -> Any:
        step, slots = self.buffers.fill(host, bank, self._drafts(host, bank))
        group = step.groups[GROUP]
        ours = host.replace(
            query_start_loc=group.query_start_loc[: host.num_reqs + 1],
            seq_lens=group.seq_lens[: host.num_reqs],
            slot_mapping=slots[: host.slot_mapping.shape[0]],
            **_STALE,
        )
        stock = self._stock[bank].build(0, ours, fast_build=fast, **extra)
        local = self.buffers.local(step, bank, host.num_reqs, stock.replay_start)
        metadata = self._with_rows(stock, local, host, bank)
        self.reporter.built(hook, bank, metadata, step)
        return metadata

    def _update(self, metadata: Any) -> None:
        host, bank = metadata.host, metadata.bank
        step, _ = self.buffers.fill(host, bank, self._drafts(host, bank))
        self._stock[bank].update_draft_decode_metadata(metadata)
        self.buffers.local(step, bank, host.num_reqs, metadata.replay_start)
        self.reporter.built("update_draft_decode_metadata", bank, metadata, step)

    def _drafts(self, host: Any, bank: int) -> Tensor | None:
        return self._mask.of(self._engine.unfinished, host.num_reqs) if bank else None

    def _plain(self, host: Any, bank: int, fast: bool, extra: dict[str, Any]) -> Any:
        """The stock builder's metadata, and rows of ours: other ranks exchange tokens with us."""
        stock = self._stock[bank].build(0, host.replace(**_STALE), fast_build=fast, **extra)
        return self._with_rows(stock, self._plain_rows(host, stock.replay_start), host, bank)

    def _plain_update(self, metadata: Any) -> None:
        host = metadata.host
        metadata.query_start_loc.copy_(host.query_start_loc[: host.num_reqs + 1])
        metadata.seq_lens.copy_(host.seq_lens[: host.num_reqs])
        metadata.slot_mapping.copy_(host.slot_mapping)
        self._stock[metadata.bank].update_draft_decode_metadata(metadata)
        metadata.local = self._plain_rows(host, metadata.replay_start)

    def _plain_rows(self, host: Any, replay_start: Tensor) -> LocalWindow:
        shard = TokenShard(host.num_actual_tokens, self._shard.tp_size, self._shard.tp_rank)
        window, block_size = self.window_size, self.block_size
        return plain_rows(self._kernels, host, shard, window, block_size, replay_start)

    def _with_rows(self, stock: Any, local: LocalWindow, host: Any, bank: int) -> Any:
        given = {item.name: getattr(stock, item.name) for item in fields(stock)}
        return self.metadata_class(
            **given, local=local, host=host.replace(), bank=bank, attention=self.reporter.attention
        )


_STALE = {"_token_to_req_indices_cache": None, "_num_computed_tokens_cache": None}
"""The proposer advances the batch in place and leaves step 0's values behind."""


def make_common(batch: Batch, table: Tensor) -> Any:
    """Return vLLM's common metadata of a batch on the device of its block table."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor([0, *accumulate(batch.queries)], dtype=torch.int32)
    lengths = torch.tensor(batch.lengths, dtype=torch.int32)
    count, tokens = len(batch.queries), sum(batch.queries)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(table.device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(table.device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=count,
        num_actual_tokens=tokens,
        max_query_len=max(batch.queries, default=0),
        max_seq_len=max(batch.lengths, default=0),
        block_table_tensor=table[:count],
        slot_mapping=torch.zeros(tokens, dtype=torch.int64, device=table.device),
    )


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
