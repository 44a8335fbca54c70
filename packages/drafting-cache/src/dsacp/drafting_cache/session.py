"""One generation of buffers, what is bound to them, and how far they are in use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dsacp.core import LayoutError, StaleAddressError, round_up
from dsacp.drafting_cache.buffers import Buffers, allocate
from dsacp.drafting_cache.config import BuilderConfig
from dsacp.drafting_cache.extents import Extent, Extents, wanted_extents
from dsacp.drafting_cache.geometry import Geometries, StepGeometry
from dsacp.drafting_cache.host import PinnedRing, check_block_tables, check_inputs
from dsacp.drafting_cache.launches import (
    clean_tails,
    compute_plans,
    compute_rows,
    fields_launch,
)
from dsacp.drafting_cache.plans import plan_table
from dsacp.drafting_cache.types import BoundInputs, DraftBatch, StepMetadata
from dsacp.drafting_cache.views import step_view
from dsacp.kernels import stage_inputs

CACHED_SHAPES = 1024
"""Launches and views kept a generation; serving sees a few hundred shapes."""


@dataclass(frozen=True)
class Prepared:
    """Everything about a shape that no batch changes: made once, because eager hosts are slow.

    Attributes:
        fields: the checked launch of all fields.
        plans: the work splits to plan, or None.
        views: metadata of each step.
        extents: rows and padded tokens that the launches write in each step.
        compresses: whether a step needs compressed rows.
    """

    fields: Callable[[], None]
    plans: Tensor | None
    views: tuple[StepMetadata, ...]
    extents: tuple[tuple[int, int], ...]
    compresses: bool


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
        self._prepared = lru_cache(maxsize=CACHED_SHAPES)(self._prepare)
        self._wanted = lru_cache(maxsize=CACHED_SHAPES)(self._make_wanted)
        self._kept: dict[tuple[Geometries, int], Prepared] = {}

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
        del self._prepared, self._wanted, self._bound, self.buffers

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

    def stage(self, batch: DraftBatch, geometries: Geometries, first: int) -> None:
        """Clean tails of larger batches and copy moving inputs in one launch."""
        _, inputs, _ = self._need_bound()
        config = self.config
        wanted = self._wanted(batch.num_reqs, batch.num_tokens, geometries)
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
            config.capacity.max_reqs,
        )

    def keep(self, geometries: Geometries, first: int) -> None:
        """Prepare a shape for as long as the buffers live: captured graphs read its work splits."""
        key = (geometries, first)
        if key not in self._kept:
            self._kept[key] = self._prepared(*key)

    def compute(self, geometries: Geometries, first: int) -> tuple[StepMetadata, ...]:
        """Launch everything for consecutive steps and return their views."""
        prepared = self._kept.get((geometries, first)) or self._prepared(geometries, first)
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
        config, buffers = self.config, self.buffers
        tp = config.capacity.tp_size
        return Prepared(
            fields_launch(config, buffers, tables, inputs, pointers, geometries, first),
            self._make_plans(geometries, first),
            tuple(self._make_view(first + i, shape) for i, shape in enumerate(geometries)),
            tuple((shape.rows, round_up(shape.tokens, tp)) for shape in geometries),
            first == 0 and any(group.compressor for group in config.groups),
        )

    def _make_wanted(
        self, num_reqs: int, num_tokens: int, geometries: Geometries
    ) -> tuple[Extent, ...]:
        dummy = self.config.padding == "dummy"
        return wanted_extents(num_reqs, num_tokens, geometries, self.config.capacity.tp_size, dummy)

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

    def _make_plans(self, geometries: Geometries, first: int) -> Tensor | None:
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
