"""Continuous batching on a virtual clock, with paged KV."""

from dsacp.app.scheduling.blocks import BlockPool, KvGroup
from dsacp.app.scheduling.config import SchedulerConfig
from dsacp.app.scheduling.plan import EngineStep, RowPlan
from dsacp.app.scheduling.scheduler import Scheduler
from dsacp.app.scheduling.tables import BlockTables

__all__ = [
    "BlockPool",
    "BlockTables",
    "EngineStep",
    "KvGroup",
    "RowPlan",
    "Scheduler",
    "SchedulerConfig",
]
