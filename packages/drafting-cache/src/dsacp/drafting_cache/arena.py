"""One storage for many small buffers, with guard words between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dsacp.core import GUARD_WORD, BufferRegion, LayoutError, Uncopied, round_up

ALIGN_WORDS = 16
"""Fields start on 64 bytes, so that vector loads never straddle two of them."""

FieldKey = tuple[str, int, str]
"""(group, draft step, field)."""


@dataclass(frozen=True)
class FieldPlan:
    """Where one field lies in an arena, in 4-byte words."""

    key: FieldKey
    offset: int
    words: int
    guard_words: int


@dataclass(frozen=True)
class ArenaPlan:
    """A layout computed from sizes alone; no memory is touched."""

    fields: Mapping[FieldKey, FieldPlan]
    total_words: int

    def offset(self, key: FieldKey) -> int:
        """Return the word offset of a field, or -1 when the arena has none of that name."""
        plan = self.fields.get(key)
        return -1 if plan is None else plan.offset


def plan_arena(sizes: Iterable[tuple[FieldKey, int]], guard_words: int) -> ArenaPlan:
    """Lay fields out one after the other; at least ``guard_words`` lie before and after each.

    Raises:
        LayoutError: a key occurs twice, or the arena outgrows 32-bit word offsets.
    """
    fields: dict[FieldKey, FieldPlan] = {}
    cursor = round_up(guard_words, ALIGN_WORDS)
    for key, words in sizes:
        if key in fields:
            raise LayoutError(f"expected one buffer per (group, step, field), found {key} twice")
        following = round_up(cursor + words + guard_words, ALIGN_WORDS)
        fields[key] = FieldPlan(key, cursor, words, following - cursor - words)
        cursor = following
    if cursor >= 2**31:
        raise LayoutError(
            f"expected an arena below {2**31} words, found {cursor}: lower max_num_batched_tokens"
        )
    return ArenaPlan(fields, cursor)


@dataclass(frozen=True)
class Arena(Uncopied):
    """The storage of a plan, guard words written once at construction."""

    plan: ArenaPlan
    storage: Tensor

    @classmethod
    def allocate(cls, plan: ArenaPlan, device: torch.device, dtype: torch.dtype) -> "Arena":
        """Allocate and fill with guard words; ``dtype`` is a 4-byte type."""
        words = torch.full((plan.total_words,), GUARD_WORD, dtype=torch.int32, device=device)
        return cls(plan, words.view(dtype))

    def view(self, key: FieldKey, words: int | None = None) -> Tensor:
        """Return the first ``words`` entries of a field (all by default) as a 1-D view."""
        plan = self.plan.fields[key]
        return self.storage[plan.offset : plan.offset + (plan.words if words is None else words)]

    def regions(self) -> tuple[BufferRegion, ...]:
        """Return every field as the guard wants it."""
        base = self.storage.data_ptr()
        return tuple(
            BufferRegion(*plan.key, base + 4 * plan.offset, 4 * plan.words, 4 * plan.guard_words)
            for plan in self.plan.fields.values()
        )
