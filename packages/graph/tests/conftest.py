"""A small stand-in for a metadata builder: persistent buffers of two groups and three steps."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dsacp.core import GUARD_WORD, BufferRegion
from dsacp.graph import GraphGuard

GUARD_WORDS = 4
FIELDS = ("query_start_loc", "seq_lens", "slot_mapping")
POISON = 0x7FFF_FFFF


@dataclass(frozen=True)
class ToyGroup:
    query_start_loc: Tensor
    seq_lens: Tensor
    slot_mapping: Tensor


@dataclass(frozen=True)
class ToyStep:
    draft_index: int
    groups: Mapping[str, ToyGroup]


class Toy:
    """One int32 arena; every field of ``rows`` entries (starts one more), guard words between."""

    def __init__(self, groups: Iterable[str] = ("swa", "tail"), steps: int = 3, rows: int = 5):
        self.groups, self.steps, self.rows = tuple(groups), steps, rows
        self.generation = 0
        self.staged = torch.zeros(rows, dtype=torch.int32)
        self.num_reqs = torch.zeros(1, dtype=torch.int32)
        self.allocate()

    def allocate(self) -> None:
        self.offsets: dict[tuple[str, int, str], tuple[int, int]] = {}
        cursor = GUARD_WORDS
        for group in self.groups:
            for step in range(self.steps):
                for field in FIELDS:
                    words = self.rows + (field == "query_start_loc")
                    self.offsets[group, step, field] = (cursor, words)
                    cursor += words + GUARD_WORDS
        self.arena = torch.full((cursor,), GUARD_WORD, dtype=torch.int32)
        for key in self.offsets:
            self.field(*key).fill_(POISON)
        self.generation += 1

    def field(self, group: str, step: int, field: str) -> Tensor:
        start, words = self.offsets[group, step, field]
        return self.arena[start : start + words]

    def regions(self) -> list[BufferRegion]:
        base = self.arena.data_ptr()
        return [
            BufferRegion(*key, base + 4 * start, 4 * words, 4 * GUARD_WORDS)
            for key, (start, words) in self.offsets.items()
        ]

    def guard(self) -> GraphGuard:
        return GraphGuard(self.regions(), [self.arena], lambda: self.generation)

    def stage(self, lens: list[int]) -> None:
        """Copy the host's lengths; the tail is cleaned."""
        host = torch.tensor(lens + [0] * (self.rows - len(lens)), dtype=torch.int32)
        self.staged.copy_(host)
        self.num_reqs.fill_(len(lens))

    def step(self, step: int) -> ToyStep:
        return ToyStep(
            step,
            {
                group: ToyGroup(*(self.field(group, step, field) for field in FIELDS))
                for group in self.groups
            },
        )

    def refresh(self, steps: int | None = None) -> tuple[ToyStep, ...]:
        """Device-only: recompute every field of every step in place."""
        built = tuple(self.step(step) for step in range(self.steps if steps is None else steps))
        real = self.staged > 0
        for metadata in built:
            for index, group in enumerate(metadata.groups.values()):
                lens = torch.where(real, self.staged + metadata.draft_index, 0)
                group.seq_lens.copy_(lens)
                torch.arange(self.rows + 1, out=group.query_start_loc)
                group.query_start_loc.clamp_(max=self.num_reqs)
                slots = lens - 1 + 1000 * (index + 1)
                group.slot_mapping.copy_(torch.where(real, slots, -1))
        return built


@pytest.fixture
def make_toy() -> Callable[..., Toy]:
    return Toy


@pytest.fixture
def toy() -> Toy:
    return Toy()
