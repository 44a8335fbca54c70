"""One generation of buffers, what is bound to them, and how far they are in use."""

from collections.abc import Mapping
from functools import lru_cache

from torch import Tensor

from dsacp.core import LayoutError, Uncopied, round_up
from dsacp.drafting_cache.buffers import Buffers, allocate
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.extents import Extent, Extents, wanted_extents
from dsacp.drafting_cache.geometry import Geometries, StepGeometry, within_table
from dsacp.drafting_cache.host import (
    PinnedRing,
    check_batch,
    check_block_tables,
    check_bound,
    check_inputs,
    check_same,
    given_inputs,
)
from dsacp.drafting_cache.idle import idle_batch, unrecorded
from dsacp.drafting_cache.launches import (
    clean_compressed,
    clean_tails,
    compute_plans,
    compute_rows,
    fields_launch,
    table_pointers,
)
from dsacp.drafting_cache.plans import plan_table
from dsacp.drafting_cache.prepared import Prepared
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, StepMetadata
from dsacp.drafting_cache.values import check_bound_count, check_values
from dsacp.drafting_cache.views import StepViews
from dsacp.kernels import stage_inputs

CACHED_SHAPES = 1024
"""Launches and views kept a generation; serving sees a few hundred shapes."""


class Session(Uncopied):
    """Buffers between ``open`` and release. Only buffer contents and bookkeeping change."""

    def __init__(self, config: BuilderConfig, buffers: Buffers, generation: int) -> None:
        self.config = config
        self.buffers = buffers
        self.generation = generation
        self._bound: tuple[Mapping[str, Tensor], BoundInputs, Tensor] | None = None
        self._rows = 0
        self._views: StepViews | None = None
        self._extents = Extents(config.capacity)
        on_host = config.device.type == "cpu"
        self._ring = None if on_host else PinnedRing(config.capacity.max_reqs, config.device)
        self._prepared = lru_cache(maxsize=CACHED_SHAPES)(self._prepare)
        self._wanted = lru_cache(maxsize=CACHED_SHAPES)(self._make_wanted)
        self._kept: dict[tuple[Geometries, int], Prepared] = {}
        self._idle = idle_batch(config.device)
        self._holds_requests = False
        self._unread: Geometries | None = None

    @classmethod
    def open(cls, config: BuilderConfig, generation: int) -> "Session":
        """Allocate a generation's buffers."""
        buffers = allocate(
            config.capacity,
            config.groups,
            config.rope,
            config.num_steps,
            config.device,
            config.guard_words,
        )
        return cls(config, buffers, generation)

    def close(self) -> None:
        """Drop cached views, so that the storages are freed now and not by a later collection."""
        self._prepared.cache_clear()
        self._wanted.cache_clear()
        self._kept.clear()
        if self._views is not None:
            self._views.close()
        del self._prepared, self._wanted, self._views, self._bound, self.buffers

    def bind(self, tables: Mapping[str, Tensor], inputs: BoundInputs | None) -> None:
        """Check and remember the host's persistent tensors."""
        config, device = self.config, self.buffers.words.storage.device
        # A padded request of its own needs a row; one that repeats a start is not missed.
        padded = config.padding == "dummy" and self._bound is None
        least = config.capacity.max_reqs if padded else 1
        check_block_tables(config.groups, tables, device, config.max_model_len, least)
        inputs = self.buffers.staging if inputs is None else inputs
        if self._bound is not None:
            check_same(self._bound[0], tables, self._bound[1], inputs)
            return
        check_inputs(inputs, config.capacity.max_reqs, device)
        kept = {group.name: tables[group.name] for group in config.groups}
        self._bound = (kept, inputs, table_pointers(kept, self.buffers.rope, config.device))
        self._rows = min(table.shape[0] for table in kept.values())
        self._views = StepViews(
            self.buffers, config.groups, kept, inputs.num_reqs, config.shard, self.generation
        )

    def build(
        self, batch: DraftBatch, geometries: Geometries, first: int
    ) -> tuple[StepMetadata, ...]:
        """Check everything, then stage and compute consecutive steps; return their views."""
        prepared = self._shape(geometries, first)
        self._stage(batch, geometries, first)
        self._unread = None
        return self._launch(prepared, first)

    @property
    def bound_rows(self) -> int:
        """Requests that every bound block table has a row for."""
        self._need_bound()
        return self._rows

    def stage(self, batch: DraftBatch, geometries: Geometries) -> None:
        """Stage a batch that a replay, or one ``refresh`` of these shapes, will read."""
        self._stage(batch, geometries, 0)
        self._unread = geometries

    def stage_idle(self, geometries: Geometries) -> None:
        """Leave no request in what a ``refresh`` reads, the framework's own count included."""
        _, inputs, _ = self._need_bound()
        idle = self._idle
        if inputs is not self.buffers.staging:
            inputs.num_reqs.zero_()
            idle = DraftBatch(0, 0)
        self._stage(idle, geometries, 0)
        self._unread = None

    def _stage(self, batch: DraftBatch, geometries: Geometries, first: int) -> None:
        """Check a batch, clean tails of larger ones and copy moving inputs in one launch."""
        tables, inputs, _ = self._need_bound()
        config = self.config
        self._check(batch, inputs, geometries[0], first)
        wanted = self._wanted(batch.num_reqs, batch.num_tokens, geometries)
        if not self._extents.match(wanted, first):
            tails = self._extents.tails(wanted, first)
            if tails is not None:
                clean_tails(config, self.buffers, first, tails)
                if first == 0:
                    clean_compressed(config, self.buffers, tables, tails[0], self._rows)
            self._extents.adopt(wanted, first)
        if inputs is not self.buffers.staging:
            return
        self._holds_requests = batch.num_reqs > 0
        starts, lengths = given_inputs(batch)
        if self._ring is not None and starts.is_cpu:
            batch = self._ring.to_device(batch)
            starts, lengths = given_inputs(batch)
        stage_inputs(
            starts,
            lengths,
            batch.num_rejected,
            batch.num_reqs,
            self.buffers.staging_block,
            config.capacity.max_reqs,
            num_tokens=batch.num_tokens,
            drafts=batch.drafts,
            with_drafts=True,
        )

    def _check(
        self, batch: DraftBatch, inputs: BoundInputs, geometry: StepGeometry, first: int
    ) -> None:
        """Raise where a batch cannot be read, or contradicts itself as far as the host can see."""
        debug = self.config.debug
        uniform = batch.bucket is not None or first > 0
        query_len = geometry.pad_query_len if uniform else None
        if inputs is self.buffers.staging:
            check_batch(batch, self._rows, inputs.num_reqs.device)
            check_values(batch, *given_inputs(batch), query_len, debug)
            return
        check_bound(batch, self._rows, inputs)
        if debug:
            check_bound_count(batch, inputs.num_reqs)
            check_values(batch, inputs.query_start_loc, inputs.seq_lens, query_len, debug)

    def refresh(self, geometries: Geometries) -> tuple[StepMetadata, ...]:
        """Compute steps from bound and staged inputs, keeping what a captured graph reads.

        A capture runs what follows for real, on the CPU and before it: where the staged batch is
        not one that was staged for this run, its requests are not there to be written.
        """
        if self._unread != geometries and self._holds_requests:
            with unrecorded(self.config.device) as may_launch:
                if may_launch:
                    self._stage(self._idle, geometries, 0)
        self._unread = None
        prepared = self._kept[geometries, 0] = self._shape(geometries, 0)
        return self._launch(prepared, 0)

    def _shape(self, geometries: Geometries, first: int) -> Prepared:
        return self._kept.get((geometries, first)) or self._prepared(geometries, first)

    def _launch(self, prepared: Prepared, first: int) -> tuple[StepMetadata, ...]:
        prepared.fields()
        if prepared.plans is not None:
            compute_plans(self.buffers, prepared.plans)
        for step, (rows, tokens) in enumerate(prepared.extents, first):
            self._extents.grow(rows, tokens, step)
        if prepared.compresses:
            compute_rows(self.config, self.buffers, prepared.views[0])
        return prepared.views

    def _prepare(self, geometries: Geometries, first: int) -> Prepared:
        tables, inputs, pointers = self._need_bound()
        config, buffers, views = self.config, self.buffers, self._views
        assert views is not None, "made by bind"
        tp = config.capacity.tp_size
        shown = tuple(within_table(shape, self._rows) for shape in geometries)
        return Prepared(
            fields_launch(config, buffers, tables, inputs, pointers, geometries, first),
            self._make_plans(shown, first),
            tuple(views.step(first + i, shape) for i, shape in enumerate(shown)),
            tuple((shape.rows, round_up(shape.tokens, tp)) for shape in geometries),
            first == 0 and any(group.compressor for group in config.groups),
        )

    def _make_wanted(
        self, num_reqs: int, num_tokens: int, geometries: Geometries
    ) -> tuple[Extent, ...]:
        dummy = self.config.padding == "dummy"
        return wanted_extents(num_reqs, num_tokens, geometries, self.config.capacity.tp_size, dummy)

    def _make_plans(self, geometries: Geometries, first: int) -> Tensor | None:
        config = self.config
        plan = self.buffers.words.plan
        table = plan_table(plan, config.groups, geometries, first, config.sas_policy)
        return None if table is None else table.to(config.device)

    def _need_bound(self) -> tuple[Mapping[str, Tensor], BoundInputs, Tensor]:
        if self._bound is None:
            raise LayoutError("expected bound block tables, found none: call bind() before a build")
        return self._bound
