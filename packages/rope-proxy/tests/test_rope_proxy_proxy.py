import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import CapacityError, DraftCapacity, LayoutError
from dsacp.rope_proxy import RopeBanks, RopeConfig, RopeDataProxy, RopeRegistry, RopeRows

CONFIG = RopeConfig(8, 128, 10000.0)
OTHER = RopeConfig(8, 128, 500.0)


def loose(count: int) -> RopeRows:
    """Rows that no bank holds, as an eager caller may make them."""
    layers = {"a": CONFIG, "b": OTHER, "c": CONFIG}
    values = {config: torch.full((count, 8), 0.5) for config in (CONFIG, OTHER)}
    return RopeRows(RopeDataProxy(layers, values, 1.0), RopeDataProxy(layers, values, 0.0))


def banked(tokens: int) -> RopeRows:
    registry = RopeRegistry()
    registry.register("a", CONFIG)
    capacity = DraftCapacity.from_config(2, 16, 1, 1)
    banks = RopeBanks(registry, capacity, 1, "cpu")
    return banks.fill(0, torch.arange(1, tokens + 1, dtype=torch.int32), tokens)


def test_layers_of_one_configuration_share_rows() -> None:
    rows = loose(5)
    assert rows.cos["a"] is rows.cos["c"]
    assert rows.cos["a"] is not rows.cos["b"]
    assert len(rows.cos) == 5


def test_a_loose_proxy_pads_with_a_copy_that_does_not_rotate() -> None:
    rows = loose(5).pad_to(7)
    assert torch.equal(rows.cos["b"][5:], torch.ones(2, 8))
    assert torch.equal(rows.sin["b"][5:], torch.zeros(2, 8))
    assert torch.equal(rows.sin["b"][:5], torch.full((5, 8), 0.5))


def test_a_banked_proxy_pads_with_a_view() -> None:
    rows = banked(5)
    padded = rows.pad_to(9)
    assert padded.cos["a"].data_ptr() == rows.cos["a"].data_ptr()
    assert padded.cos["a"].shape == (9, 8)
    assert torch.equal(padded.cos["a"][5:], torch.ones(4, 8))
    assert torch.equal(padded.sin["a"][5:], torch.zeros(4, 8))
    assert padded.pad_to(9).cos is padded.cos


def test_padding_past_the_bank_names_both_numbers() -> None:
    with pytest.raises(CapacityError, match="needs 17 rows of the RoPE bank, it holds 16"):
        banked(5).pad_to(17)
    with pytest.raises(CapacityError, match="to 14 rows needs 17 rows"):
        banked(5)[3:].pad_to(14)


def test_padding_never_takes_the_rows_of_another_rank() -> None:
    rows = banked(8)
    assert rows[4:8].pad_to(6).cos["a"].shape == (6, 8)
    with pytest.raises(LayoutError, match="pad before slicing"):
        rows[0:4].pad_to(6)
    with pytest.raises(LayoutError, match="pad before slicing"):
        rows[0:4][1:4].pad_to(6)
    with pytest.raises(LayoutError, match=r"pad_to >= 8 rows, found 7"):
        rows.pad_to(7)


def test_a_stepped_slice_is_refused() -> None:
    with pytest.raises(LayoutError, match="step 1, found 2"):
        banked(8)[::2]


def test_an_unknown_layer_is_an_error_never_an_empty_dict() -> None:
    """Upstream's proxy answers with an empty dict, which fails far from the cause."""
    with pytest.raises(LayoutError, match=r"found 'z'; known are \['a', 'b', 'c'\]"):
        loose(3).sin["z"]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 12), st.integers(-14, 14), st.integers(-14, 14))
def test_slices_are_views_of_the_same_rows(tokens: int, begin: int, end: int) -> None:
    rows = banked(tokens)
    part = rows[begin:end]
    want = rows.cos["a"][slice(*slice(begin, end).indices(tokens))]
    assert torch.equal(part.cos["a"], want)
    assert len(part.sin) == want.shape[0]
    if want.numel():
        assert part.cos["a"].data_ptr() == want.data_ptr()
