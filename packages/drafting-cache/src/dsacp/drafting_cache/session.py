"""One generation of buffers, what is bound to them, and how far they are in use."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dsacp.core import LayoutError, StaleAddressError, round_up
from dsacp.drafting_cache.buffers import Buffers, allocate
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.extents import Extents, wanted_extents
from dsacp.drafting_cache.geometry import StepGeometry
from dsacp.drafting_cache.host import PinnedRing, check_block_tables, check_inputs
from dsacp.drafting_cache.launches import (
    clean_tails,
    compute_fields,
    compute_plans,
    compute_rows,
)
from dsacp.drafting_cache.plans import plan_table
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, StepMetadata
from dsacp.drafting_cache.views import step_view
from dsacp.kernels import stage_inputs

CACHED_SHAPES = 1024
"""Views and plan tables kept a generation; serving sees a few hundred shapes."""


class Session:
    """Buffers between ``open`` and release. Only buffer contents and bookkeeping change."""

    def __init__(self, config: BuilderConfig, buffers: Buffers, generation: int) -> None:
        self.config = config
        self.buffers = buffers
        self.generation = generation
        self._bound: tuple[Mapping[str, Tensor], BoundInputs, Tensor] | None = None
        self._extents = Extents(config.capacity)
        on_host = config.device.type == "cpu"
        self._ring = None if on_host else PinnedRing(config.capacity.max_reqs, config.device)
        self._view = lru_cache(maxsize=CACHED_SHAPES)(self._make_view)
        self._plans = lru_cache(maxsize=CACHED_SHAPES)(self._make_plans)

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
        self._view.cache_clear()
        self._plans.cache_clear()
        del self._view, self._plans, self._bound, self.buffers

    def bind(self, tables: Mapping[str, Tensor], inputs: BoundInputs | None) -> None:
        """Check and remember the host's persistent tensors."""
        check_block_tables(self.config.groups, tables, self.config.device)
        if inputs is not None:
            check_inputs(inputs, self.config.capacity.max_reqs)
        if self._bound is not None:
            self._check_same(tables)
            return
        kept = {group.name: tables[group.name] for group in self.config.groups}
        self._bound = (kept, inputs or self.buffers.staging, self._pointers(kept))

    def stage(self, batch: DraftBatch, geometries: Sequence[StepGeometry], first: int) -> None:
        """Clean tails of larger batches and copy moving inputs in one launch."""
        _, inputs, _ = self._need_bound()
        config = self.config
        wanted = wanted_extents(
            batch, geometries, config.capacity.tp_size, config.padding == "dummy"
        )
        tails = self._extents.shrink(wanted, first)
        if tails is not None:
            clean_tails(config, self.buffers, first, tails)
        if inputs is not self.buffers.staging:
            return
        if self._ring is not None and batch.query_start_loc.device.type == "cpu":
            batch = self._ring.to_device(batch)
        stage_inputs(
            batch.query_start_loc,
            batch.seq_lens,
            batch.num_rejected,
            batch.num_reqs,
            self.buffers.staging_block,
            self.config.capacity.max_reqs,
        )

    def compute(self, geometries: tuple[StepGeometry, ...], first: int) -> tuple[StepMetadata, ...]:
        """Launch everything for consecutive steps and return their views."""
        tables, inputs, pointers = self._need_bound()
        compute_fields(self.config, self.buffers, tables, inputs, pointers, geometries, first)
        plans = self._plans(geometries, first)
        if plans is not None:
            compute_plans(self.buffers, plans)
        tp = self.config.capacity.tp_size
        views = []
        for index, geometry in enumerate(geometries):
            step = first + index
            self._extents.grow(geometry.rows, round_up(geometry.tokens, tp), step)
            view = self._view(step, geometry)
            if step == 0:
                compute_rows(self.config, self.buffers, view)
            views.append(view)
        return tuple(views)

    def _make_view(self, step: int, geometry: StepGeometry) -> StepMetadata:
        tables, inputs, _ = self._need_bound()
        return step_view(
            self.buffers,
            self.config.groups,
            tables,
            inputs,
            self.config.shard,
            step,
            geometry,
            self.generation,
        )

    def _make_plans(self, geometries: tuple[StepGeometry, ...], first: int) -> Tensor | None:
        config = self.config
        plan = self.buffers.words.plan
        table = plan_table(plan, config.groups, geometries, first, config.sas_policy)
        return None if table is None else table.to(config.device)

    def _need_bound(self) -> tuple[Mapping[str, Tensor], BoundInputs, Tensor]:
        if self._bound is None:
            raise LayoutError("expected bound block tables, found none: call bind() before a build")
        return self._bound

    def _check_same(self, tables: Mapping[str, Tensor]) -> None:
        bound, _, _ = self._need_bound()
        for name, table in bound.items():
            if tables[name].data_ptr() != table.data_ptr():
                raise StaleAddressError(
                    f"expected the block table of {name!r} at {table.data_ptr():#x} where graphs "
                    f"read it, found {tables[name].data_ptr():#x}: keep the host's table "
                    "persistent, or release() and capture again"
                )

    def _pointers(self, tables: Mapping[str, Tensor]) -> Tensor:
        words: list[int] = []
        for table in tables.values():
            words += [table.data_ptr(), table.stride(0), table.shape[1]]
        rope = self.buffers.rope
        for cos, sin in zip(rope.cos_tables, rope.sin_tables, strict=True):
            words += [cos.data_ptr(), sin.data_ptr()]
        return torch.tensor(words, dtype=torch.int64).to(self.config.device)
