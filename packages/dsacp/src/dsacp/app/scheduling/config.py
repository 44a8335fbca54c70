"""Limits of the scheduler, checked once."""

from dataclasses import dataclass

from dsacp.app.scheduling.blocks import KvGroup
from dsacp.core import CapacityError, LayoutError


@dataclass(frozen=True)
class SchedulerConfig:
    """What a batch may hold.

    Attributes:
        max_num_seqs: requests of one step.
        max_num_batched_tokens: tokens of one step.
        num_draft_tokens: K, drafts proposed a step.
        max_model_len: a request ends when it has that many tokens.
        step_ms: virtual milliseconds of one step.
        groups: KV groups, each with its own blocks.

    Raises:
        LayoutError: a count is below 1, or no KV group is given.
        CapacityError: a group cannot hold one request of ``max_model_len`` tokens, so that
            preemption could not help it to finish.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_draft_tokens: int
    max_model_len: int
    step_ms: float
    groups: tuple[KvGroup, ...]

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_draft_tokens", "step_ms"):
            if (value := getattr(self, name)) <= 0:
                raise LayoutError(f"expected {name} above 0, found {value}")
        if not self.groups or self.max_model_len < 2:
            raise LayoutError(
                f"expected a KV group and max_model_len >= 2, found {len(self.groups)} groups and "
                f"max_model_len {self.max_model_len}"
            )
        for group in self.groups:
            needed = group.blocks_for(self.max_model_len)
            if needed > group.num_blocks - 1:
                raise CapacityError(
                    f"one request of max_model_len={self.max_model_len} needs {needed} blocks of "
                    f"group {group.name!r}, it has {group.num_blocks - 1}: raise --kv-tokens or "
                    "lower --max-model-len"
                )
