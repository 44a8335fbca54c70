"""What a builder was made for; checked once, before any buffer exists."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dsacp.core import CapacityError, DraftCapacity, LayoutError, TokenShard, check_whole
from dsacp.drafting_cache.types import GroupSpec
from dsacp.kernels import MAX_PLAN_ROWS
from dsacp.rope_proxy import RopeRegistry
from dsacp.sas_metadata import SasPolicy

Overflow = Literal["reset", "saturate"]
Padding = Literal["dummy", "repeat"]


@dataclass(frozen=True)
class BuilderConfig:
    """Everything a builder needs to know that never changes.

    Raises:
        LayoutError: groups are missing or share a name, or the shard contradicts the capacity.
        CapacityError: a position below ``max_model_len`` lies past a RoPE table (vLLM #57941).
    """

    capacity: DraftCapacity
    groups: tuple[GroupSpec, ...]
    rope: RopeRegistry
    shard: TokenShard
    device: torch.device
    max_model_len: int
    num_steps: int
    overflow: Overflow
    padding: Padding
    causal: bool
    sas_policy: SasPolicy
    guard_words: int
    debug: bool

    def __post_init__(self) -> None:
        self._check_groups()
        self._check_choices()
        self._check_ranges()
        if self.shard.tp_size != self.capacity.tp_size:
            raise LayoutError(
                f"expected a shard of tp_size {self.capacity.tp_size} as the capacity was made "
                f"for, found {self.shard.tp_size}"
            )

    def _check_groups(self) -> None:
        names = [group.name for group in self.groups]
        if not names or len(set(names)) != len(names):
            raise LayoutError(f"expected groups of distinct names, found {names}")
        compressed = [group.name for group in self.groups if group.compressor]
        if compressed and self.num_steps > 1:
            raise LayoutError(
                f"expected 1 step for the compressor groups {compressed}, found {self.num_steps}: "
                "only the target compresses; make a builder of its own with num_steps=1"
            )
        # the device's planner cannot raise, and would cut a larger plan
        planned = any(group.sas or group.qli for group in self.groups)
        rows = self.capacity.max_reqs
        if planned and rows > MAX_PLAN_ROWS:
            raise CapacityError(
                f"expected at most {MAX_PLAN_ROWS} rows in a planned step, found {rows}: lower "
                "max_num_seqs or the largest capture size, or plan no group"
            )

    def _check_choices(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "overflow": get_args(Overflow),
            "padding": get_args(Padding),
            "sas_policy": get_args(SasPolicy),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise LayoutError(
                    f"expected {name} of {list(allowed)}, found {getattr(self, name)!r}"
                )

    def _check_ranges(self) -> None:
        check_whole("num_steps", self.num_steps, 1, self.capacity.num_draft_tokens)
        check_whole("max_model_len", self.max_model_len, 1)
        check_whole("guard_words", self.guard_words, 0)
        if not self.causal and self.num_steps != 1:
            raise LayoutError(
                f"expected 1 step of a non-causal block, found {self.num_steps}: a block is "
                "drafted at once, as step 0; translate the host's draft_index in its adapter"
            )
        for config in self.rope.configs():
            if config.table_length < self.max_model_len:
                raise CapacityError(
                    f"expected RoPE tables of max_model_len={self.max_model_len} rows, found "
                    f"{config.table_length} for {config}: raise max_position_embeddings or "
                    "scaling_factor, or lower max_model_len"
                )
