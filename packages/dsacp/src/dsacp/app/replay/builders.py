"""Builders of every rank: target and drafter, each with buffers of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsacp.app.model.groups import GroupPlan, kv_groups
from dsacp.app.replay.settings import Limits, ReplayConfig
from dsacp.app.scheduling import BlockTables, SchedulerConfig
from dsacp.core import BufferRegion, DraftCapacity, TokenShard
from dsacp.drafting_cache import DraftMetadataBuilder
from dsacp.graph import GraphGuard


def capacity_of(config: ReplayConfig, limits: Limits) -> DraftCapacity:
    """Return the bounds of every buffer."""
    return DraftCapacity.from_config(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        config.draft_tokens,
        config.tp,
        limits.capture_sizes,
        config.layout,
    )


@dataclass(frozen=True)
class Setup:
    """What all ranks and both executors of one replay share.

    Attributes:
        config: the settings.
        limits: the settings with derived values.
        plan: KV groups and RoPE of target and drafter.
        capacity: bounds of the buffers.
        scheduler: limits of the batches.
        tables: block tables of every group.
    """

    config: ReplayConfig
    limits: Limits
    plan: GroupPlan
    capacity: DraftCapacity
    scheduler: SchedulerConfig
    tables: BlockTables

    @classmethod
    def of(cls, config: ReplayConfig, limits: Limits, plan: GroupPlan) -> "Setup":
        """Derive everything from settings; allocates the block tables."""
        capacity = capacity_of(config, limits)
        groups = (*plan.target_groups, *plan.draft_groups)
        caches = kv_groups(groups, limits.kv_tokens, limits.max_num_seqs)
        rows = capacity.max_reqs
        return cls(
            config=config,
            limits=limits,
            plan=plan,
            capacity=capacity,
            scheduler=SchedulerConfig(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                num_draft_tokens=config.draft_tokens,
                max_model_len=limits.max_model_len,
                step_ms=config.step_ms,
                groups=caches,
            ),
            tables=BlockTables(caches, rows, limits.max_model_len, config.device),
        )

    @property
    def device(self) -> torch.device:
        """Where builders live."""
        return torch.device(self.config.device)

    def builder(self, rank: int, *, target: bool) -> DraftMetadataBuilder:
        """Return a new builder of one rank, bound to the block tables."""
        config, plan = self.config, self.plan
        groups = plan.target_groups if target else plan.draft_groups
        builder = DraftMetadataBuilder(
            self.capacity,
            groups,
            plan.target_rope if target else plan.draft_rope,
            TokenShard(0, config.tp, rank),
            self.device,
            max_model_len=self.limits.max_model_len,
            num_steps=1 if target else None,
            overflow=config.overflow,
            padding=config.padding,
        )
        builder.bind({group.name: self.tables.tensors[group.name] for group in groups})
        return builder


@dataclass(frozen=True)
class RankBuilders:
    """The builders that one executor has for one rank."""

    rank: int
    target: DraftMetadataBuilder
    draft: DraftMetadataBuilder

    @classmethod
    def of(cls, setup: Setup, rank: int) -> "RankBuilders":
        """Allocate both."""
        return cls(rank, setup.builder(rank, target=True), setup.builder(rank, target=False))

    @property
    def named(self) -> Mapping[str, DraftMetadataBuilder]:
        """Both by the name that reports use."""
        return {"target": self.target, "draft": self.draft}


def guard_of(owners: Mapping[str, Sequence[RankBuilders]]) -> GraphGuard:
    """Return one guard over all builders of all owners, which proves that none share a byte (I5).

    Args:
        owners: ranks by executor, such as "eager" and "graph"; the name leads every label.
    """
    regions: list[BufferRegion] = []
    storages: list[Tensor] = []
    builders: list[DraftMetadataBuilder] = []
    for owner, ranks in owners.items():
        for rank in ranks:
            for role, builder in rank.named.items():
                prefix = f"{owner}.rank{rank.rank}.{role}"
                regions += [
                    replace(region, group=f"{prefix}.{region.group}")
                    for region in builder.regions()
                ]
                storages += builder.storages()
                builders.append(builder)
    return GraphGuard(
        regions, storages, generation=lambda: sum(builder.generation for builder in builders)
    )
