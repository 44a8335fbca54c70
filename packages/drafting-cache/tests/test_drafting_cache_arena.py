"""Arenas: aligned fields, guard words between, disjoint regions."""

import pytest
import torch

from dsacp.core import GUARD_WORD, LayoutError, check_disjoint
from dsacp.drafting_cache import Arena, plan_arena

SIZES = [(("g", 0, "a"), 7), (("g", 0, "b"), 16), (("g", 1, "a"), 1), (("h", 0, "a"), 33)]


def test_fields_are_aligned_and_separated_by_guard_words() -> None:
    plan = plan_arena(SIZES, guard_words=5)
    ends = [0]
    for field in plan.fields.values():
        assert field.offset % 16 == 0
        assert field.offset - ends[-1] >= 5
        ends.append(field.offset + field.words)
    assert plan.total_words - ends[-1] >= 5


def test_everything_outside_the_fields_is_guard_words() -> None:
    arena = Arena.allocate(plan_arena(SIZES, 4), torch.device("cpu"), torch.float32)
    for field in arena.plan.fields.values():
        arena.view(field.key).zero_()
    words = arena.storage.view(torch.int32)
    used = sum(size for _, size in SIZES)
    assert int((words == GUARD_WORD).sum()) == words.numel() - used


def test_regions_cover_fields_and_guards_without_overlap() -> None:
    arena = Arena.allocate(plan_arena(SIZES, 4), torch.device("cpu"), torch.int32)
    regions = arena.regions()
    check_disjoint(regions)
    assert [region.nbytes for region in regions] == [4 * size for _, size in SIZES]
    assert all(region.guard_bytes >= 16 for region in regions)


def test_one_name_for_two_buffers_is_refused() -> None:
    with pytest.raises(LayoutError, match="found .*'a'.* twice"):
        plan_arena([SIZES[0], SIZES[0]], 4)
