"""The guard beyond the incidents: construction, walking, padding, names."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from dsacp.core import (
    AliasError,
    BufferRegion,
    CapacityError,
    LayoutError,
    PaddingError,
    StaleAddressError,
)
from dsacp.graph import GraphGuard, check_isolated, tensors_of


class Slotted:
    __slots__ = ("_cache", "rows")

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


@dataclass
class Everything:
    proxy: Slotted
    table: object
    name: str = "x"


def test_walk_reaches_slots_mappings_sequences_and_cycles() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    root = Everything(Slotted(a), MappingProxyType({"k": (b, [c])}))
    root.table = (root.table, root)
    paths = {path: tensor.numel() for path, tensor in tensors_of(root)}
    assert paths == {
        "metadata.proxy.rows": 1,
        "metadata.table[0]['k'][0]": 2,
        "metadata.table[0]['k'][1][0]": 3,
    }


def test_overlapping_regions_are_refused() -> None:
    regions = [BufferRegion("g", 0, "a", 64, 16, 4), BufferRegion("g", 1, "a", 80, 16)]
    with pytest.raises(AliasError, match="g/step0/a.*g/step1/a.*4 bytes"):
        GraphGuard(regions)


def test_region_outside_every_arena_is_refused() -> None:
    arena = torch.zeros(8, dtype=torch.int32)
    region = BufferRegion("g", 0, "a", arena.data_ptr() + 64, 4)
    with pytest.raises(LayoutError, match="inside one of 1 arenas"):
        GraphGuard([region], [arena])
    sticking_out = BufferRegion("g", 0, "a", arena.data_ptr(), 32, 4)
    with pytest.raises(LayoutError, match="end at"):
        GraphGuard([sticking_out], [arena])
    with pytest.raises(LayoutError, match="contiguous"):
        GraphGuard([], [torch.zeros(4, 4, dtype=torch.int32).t()])


def test_guard_does_not_keep_arenas_alive(make_toy: Callable[..., Any]) -> None:
    toy = make_toy()
    guard = toy.guard()
    del toy.arena
    gc.collect()
    with pytest.raises(StaleAddressError, match="18 regions.*freed"):
        guard.check()


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float32, 3), (torch.bfloat16, 6), (torch.float16, 10)]
)
def test_float_arenas_are_guarded_and_poisoned(dtype: torch.dtype, rows: int) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    arena = torch.zeros(16, dtype=dtype)
    region = BufferRegion("rope:0", 1, "cos", arena.data_ptr() + 2 * size, rows * size, 4)
    guard = GraphGuard([region], [arena])
    guard.fill_words()
    guard.check()
    guard.poison()
    guard.check()
    assert bool(arena[2 : 2 + rows].isnan().all())


def test_structure_and_geometry_changes_are_stale(toy: Any) -> None:
    guard = toy.guard()
    built = list(toy.refresh())
    guard.watch(built)
    with pytest.raises(StaleAddressError, match="no such tensor"):
        guard.check(built[:2])
    lens = toy.field("swa", 0, "seq_lens")
    object.__setattr__(built[0].groups["swa"], "seq_lens", lens[:3])
    with pytest.raises(StaleAddressError, match=r"int32 \[5\].*int32 \[3\]"):
        guard.check(built)
    with pytest.raises(StaleAddressError, match="as nothing, found"):
        guard.check({"extra": lens}, label="other")


def test_shared_inputs_belong_to_no_step() -> None:
    @dataclass(frozen=True)
    class Step:
        draft_index: int
        num_reqs: Tensor

    arena = torch.zeros(4, dtype=torch.int32)
    region = BufferRegion("staging", 0, "inputs", arena.data_ptr(), 16)
    steps = [Step(0, arena[:1]), Step(1, arena[:1])]
    GraphGuard([region], [arena]).watch(steps)
    with pytest.raises(AliasError, match="step 1"):
        GraphGuard([region], [arena], inputs=()).watch(steps)
    prefixed = BufferRegion("eager.rank0.staging", 0, "inputs", arena.data_ptr(), 16)
    guard = GraphGuard([prefixed], [arena])
    guard.watch(steps)
    guard.poison()
    with pytest.raises(LayoutError, match="regions, found no tensor"):
        guard.check_fresh(steps)
    assert arena.tolist() == [0] * 4, "inputs are not poisoned"


def test_view_that_reaches_past_its_buffer_is_refused(toy: Any) -> None:
    """vllm-ascend #16168: Shape [16] vs [6]."""
    start, _ = toy.offsets["swa", 1, "seq_lens"]
    with pytest.raises(CapacityError, match="needs 64 bytes.*swa/step1/seq_lens ends 20 bytes on"):
        toy.guard().watch({"seq_lens": toy.arena[start : start + 16]})


def test_isolation_allows_shared_tables_and_sees_partial_overlap() -> None:
    table, storage = torch.zeros(8), torch.zeros(12)
    left = {"table": table[:4], "a": storage[:6]}
    check_isolated({"x": left, "y": {"table": table, "b": storage[6:]}}, shared=[table])
    with pytest.raises(AliasError, match="x and y.*sharing 16 bytes"):
        check_isolated({"x": table[:4], "y": table})
    with pytest.raises(AliasError, match="sharing 4 bytes"):
        check_isolated({"x": storage[:7], "mid": table, "y": storage[6:9]})
    check_isolated({"x": storage[3:3], "y": storage})


def test_padding_is_checked_field_by_field(toy: Any) -> None:
    guard = toy.guard()
    toy.stage([6, 2, 9])
    group = toy.refresh()[1].groups["tail"]
    starts = group.query_start_loc
    fields = {
        "query_start_loc": starts[4:],
        "seq_lens": group.seq_lens[3:],
        "slot_mapping": group.slot_mapping[3:],
    }
    inert = {"query_start_loc": starts[3], "seq_lens": 0, "slot_mapping": -1}
    guard.check_padding(fields, inert)
    group.slot_mapping[4] = 77
    with pytest.raises(PaddingError, match="padding -1 in tail/step1/slot_mapping, found 77.*ry 1"):
        guard.check_padding(fields, inert)
    with pytest.raises(LayoutError, match="seq_lens"):
        guard.check_padding(fields, {"query_start_loc": starts[3]})
    with pytest.raises(PaddingError, match="cos, found nan"):
        guard.check_padding({"cos": torch.tensor([1.0, float("nan")])}, {"cos": 1.0})


def test_poison_needs_a_dtype_that_shows_it() -> None:
    arena = torch.zeros(4, dtype=torch.int32)
    region = BufferRegion("g", 0, "flags", arena.data_ptr(), 16)
    guard = GraphGuard([region], [arena])
    guard.poison()
    with pytest.raises(LayoutError, match="bool"):
        guard.check_fresh(arena.view(torch.bool))
    with pytest.raises(StaleAddressError.__mro__[1], match="2 of 2 untouched"):
        guard.check_fresh(arena.view(torch.int64))


def test_addresses_are_named(toy: Any) -> None:
    guard = toy.guard()
    table = torch.zeros(3)
    guard.watch({"table": table}, label="bound")
    assert guard.label_of(toy.field("tail", 2, "seq_lens").data_ptr()) == "tail/step2/seq_lens"
    assert guard.label_of(table.data_ptr()) == "bound['table']"
    assert guard.label_of(toy.arena.data_ptr()) is None


@pytest.mark.parametrize("method", ["poison", "check_words", "fill_words", "check"])
def test_without_arenas_nothing_passes_unseen(toy: Any, method: str) -> None:
    """A guard of regions alone wrote no poison and compared no word, and every check passed."""
    guard = GraphGuard(toy.regions())
    guard.watch(toy.refresh())
    with pytest.raises(
        LayoutError, match=rf"{method}\(\) needs the arenas of 18 regions.*storages"
    ):
        getattr(guard, method)()


def test_addresses_alone_can_be_checked(toy: Any) -> None:
    guard = GraphGuard(toy.regions())
    with pytest.raises(LayoutError, match="nothing watched"):
        guard.check_addresses()
    built = toy.refresh()
    guard.watch(built)
    guard.check_addresses(built)
    with pytest.raises(StaleAddressError, match="no such tensor"):
        guard.check_addresses(built[:2])


def test_freshness_and_padding_of_nothing_are_refused(toy: Any) -> None:
    guard = toy.guard()
    with pytest.raises(LayoutError, match="call poison"):
        guard.check_fresh(toy.refresh())
    guard.poison()
    with pytest.raises(LayoutError, match="18 regions, found no tensor"):
        guard.check_fresh({"lens": torch.zeros(5, dtype=torch.int32)})
    with pytest.raises(LayoutError, match="fields to check, found none"):
        guard.check_padding({}, {})


def test_a_generation_that_cannot_be_asked_is_refused(toy: Any) -> None:
    with pytest.raises(LayoutError, match="function without arguments, found 3"):
        GraphGuard(toy.regions(), [toy.arena], 3)
