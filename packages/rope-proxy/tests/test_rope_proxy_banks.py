import pytest
import torch
from torch import Tensor

from dsacp.core import (
    GUARD_WORD,
    CapacityError,
    DraftCapacity,
    LayoutError,
    TokenShard,
    check_disjoint,
)
from dsacp.rope_proxy import RopeBanks, RopeConfig, RopeRegistry

PLAIN = RopeConfig(64, 512, 10000.0)
YARN = RopeConfig(10, 64, 40000.0, 8.0)
STEPS = 3


def make_banks(tp_size: int = 3, guard_words: int = 16) -> RopeBanks:
    registry = RopeRegistry()
    registry.register("swa", PLAIN)
    registry.register("c4", YARN, groups=("default", "c4"))
    capacity = DraftCapacity.from_config(6, 48, STEPS, tp_size)
    return RopeBanks(registry, capacity, STEPS, "cpu", guard_words=guard_words)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def guards(banks: RopeBanks) -> Tensor:
    """Every word of the storage that is in no field."""
    outside = torch.ones(banks.storage.numel(), dtype=torch.bool)
    base = banks.storage.data_ptr()
    for region in banks.regions():
        first = (region.address - base) // 4
        outside[first : first + region.nbytes // 4] = False
    return banks.storage.view(torch.int32)[outside]


def test_banks_start_inert_with_guards_around_them() -> None:
    banks = make_banks()
    for config in banks.configs:
        for step in range(STEPS):
            cos, sin = banks.view(config, step, 6)
            assert bool((cos == 1).all())
            assert bool((sin == 0).all())
    regions = banks.regions()
    check_disjoint(regions)
    assert len(regions) == 2 * STEPS * 2
    assert all(region.guard_bytes >= 64 for region in regions)
    assert bool((guards(banks) == GUARD_WORD).all())
    assert {region.label for region in regions} >= {"rope:0/step0/cos", "rope:1/step2/sin"}


def test_layout_points_at_the_views() -> None:
    banks = make_banks()
    assert banks.layout.dtype is torch.int32
    assert banks.layout.shape == (2, STEPS, 2)
    base = banks.storage.data_ptr()
    for index, config in enumerate(banks.configs):
        for step in range(STEPS):
            addresses = [part.data_ptr() for part in banks.view(config, step, 1)]
            offsets = banks.layout[index, step].tolist()
            assert addresses == [base + 4 * offset for offset in offsets]
            assert all(offset % 16 == 0 for offset in offsets)


def test_step_zero_holds_the_token_budget_and_later_steps_the_rows() -> None:
    banks = make_banks()
    assert banks.view(PLAIN, 0, 48)[0].shape == (48, 64)
    assert banks.view(YARN, 1, 6)[1].shape == (6, 10)
    with pytest.raises(CapacityError, match="step 1 needs 7 RoPE rows, its bank holds 6"):
        banks.proxy(1, 7)
    with pytest.raises(CapacityError, match="step 0 needs 49 RoPE rows, its bank holds 48"):
        banks.view(PLAIN, 0, 49)


def test_banks_of_different_steps_are_independent() -> None:
    """vllm-ascend #9605, #11062: a later draft step overwrote the rows of step 0."""
    banks = make_banks()
    rows = [banks.fill(step, int32(100 + step, 7 * step), 100 + step) for step in range(STEPS)]
    for step, row in enumerate(rows):
        for layer, table in (("swa", banks.cos_tables[0]), ("c4", banks.cos_tables[1])):
            assert torch.equal(row.cos[layer], table[[100 + step, 7 * step]])
    for layer, table in (("swa", banks.sin_tables[0]), ("c4", banks.sin_tables[1])):
        assert torch.equal(rows[0].sin[layer], table[[100, 0]])
    assert bool((guards(banks) == GUARD_WORD).all())


def test_addresses_stay_over_fills_of_other_sizes() -> None:
    """vllm-ascend #12599: metadata of a draft step must not move between builds."""
    banks = make_banks()
    first = banks.fill(1, int32(1, 2, 3, 4), 4)
    address = first.cos["swa"].data_ptr()
    junk = [torch.empty(1000) for _ in range(100)]
    second = banks.fill(1, int32(9), 9)
    assert len(junk) == 100
    assert second.cos["swa"].data_ptr() == address
    assert torch.equal(first.cos["swa"][1:], torch.ones(3, 64))
    assert torch.equal(first.sin["c4"][1:], torch.zeros(3, 10))


def test_a_position_past_the_table_leaves_the_bank_alone() -> None:
    """vLLM #57941: position 8192 with a table of 8192 rows read past its end."""
    banks = make_banks()
    before = banks.storage.clone()
    with pytest.raises(CapacityError, match="position 512 needs 513 RoPE rows"):
        banks.fill(0, int32(3, 512), 512)
    with pytest.raises(LayoutError, match="int32"):
        banks.fill(0, torch.tensor([3, 4]), 4)
    with pytest.raises(CapacityError, match="needs 7 RoPE rows"):
        banks.fill(2, int32(*range(7)), 7)
    assert torch.equal(banks.storage, before)


@pytest.mark.parametrize("rank", range(3))
def test_local_rows_stay_in_place_when_tokens_do_not_divide(rank: int) -> None:
    """vLLM #29036 kind: tp=3 and 16 tokens pad to 18; rank 2 owns [12, 18), two of them padding."""
    banks = make_banks()
    shard = TokenShard(16, 3, rank)
    rows = banks.fill(0, torch.arange(1, 17, dtype=torch.int32), 16).pad_to(shard.padded)
    local = rows[shard.start : shard.end]
    address = banks.view(PLAIN, 0, 1)[0].data_ptr() + shard.start * 64 * 4
    assert local.cos["swa"].shape == (6, 64)
    assert local.cos["swa"].data_ptr() == address
    assert torch.equal(
        local.cos["swa"][: shard.real], banks.cos_tables[0][1:17][shard.start :][: shard.real]
    )
    assert bool((local.cos["swa"][shard.real :] == 1).all())
    assert bool((local.sin["swa"][shard.real :] == 0).all())


def test_an_unknown_layer_config_or_step_is_named() -> None:
    banks = make_banks()
    with pytest.raises(LayoutError, match=r"draft step in 0..2, found 3"):
        banks.proxy(3, 1)
    with pytest.raises(LayoutError, match=r"draft step in 0..2, found -1"):
        banks.view(PLAIN, -1, 1)
    with pytest.raises(LayoutError, match="configuration of these banks"):
        banks.view(RopeConfig(64, 512, 500.0), 0, 1)
    with pytest.raises(LayoutError, match=r"found 'other'; known are \['swa', 'c4'\]"):
        banks.proxy(0, 1).cos["other"]


def test_a_group_without_layers_is_named() -> None:
    registry = RopeRegistry()
    registry.register("swa", PLAIN)
    capacity = DraftCapacity.from_config(2, 8, 1, 1)
    with pytest.raises(LayoutError, match=r"found 'c4'; known are \['default'\]"):
        RopeBanks(registry, capacity, 1, "cpu", group="c4")
    with pytest.raises(LayoutError, match="num_steps >= 1"):
        RopeBanks(registry, capacity, 0, "cpu")


def test_a_registry_without_layers_gives_empty_banks() -> None:
    banks = RopeBanks(RopeRegistry(), DraftCapacity.from_config(2, 8, 1, 1), 1, "cpu")
    assert banks.configs == ()
    assert banks.regions() == ()
    assert banks.layout.shape == (0, 1, 2)
    with pytest.raises(LayoutError, match="found 'swa'"):
        banks.proxy(0, 1).cos["swa"]


def test_banks_without_guards_are_still_disjoint() -> None:
    banks = make_banks(guard_words=0)
    check_disjoint(banks.regions())
