import pytest
import torch

from dsacp.core import LayoutError
from dsacp.rope_proxy import RopeConfig, RopeRegistry, build_table

PLAIN = RopeConfig(64, 512, 10000.0)
YARN = RopeConfig(64, 64, 40000.0, 8.0)


def make_registry() -> RopeRegistry:
    registry = RopeRegistry()
    registry.register("layers.0.attn", PLAIN)
    registry.register("layers.1.attn", YARN, groups=("default", "c4"))
    registry.register("layers.2.attn", YARN, groups=("default", "c128"))
    registry.register("layers.3.attn", PLAIN)
    return registry


def test_lookups_keep_registration_order() -> None:
    registry = make_registry()
    assert registry.layers == tuple(f"layers.{index}.attn" for index in range(4))
    assert registry.groups == ("c128", "c4", "default")
    assert registry.configs() == (PLAIN, YARN)
    assert registry.configs("c4") == (YARN,)
    assert registry.config_of("layers.2.attn") == YARN
    assert list(registry.layer_configs("c128")) == ["layers.2.attn"]


def test_equal_configurations_share_a_table_that_is_built_once() -> None:
    registry = make_registry()
    tables = registry.tables("cpu")
    assert list(tables) == [PLAIN, YARN]
    again = registry.tables(torch.device("cpu"))
    for config in tables:
        assert again[config][0] is tables[config][0]
        assert again[config][1] is tables[config][1]
    assert torch.equal(tables[YARN][0], build_table(YARN, "cpu")[0])


def test_a_layer_registered_later_gets_its_table() -> None:
    registry = make_registry()
    first = registry.tables("cpu")
    late = RopeConfig(32, 16, 500.0)
    registry.register("late", late)
    assert late not in first
    assert registry.tables("cpu")[late][0].shape == (16, 32)


def test_two_registries_share_nothing() -> None:
    """A process-global cache let target and draft step 0 share rows (vllm-ascend #9605)."""
    left, right = make_registry(), make_registry()
    assert left.tables("cpu")[PLAIN][0].data_ptr() != right.tables("cpu")[PLAIN][0].data_ptr()
    left.register("only-left", PLAIN)
    assert "only-left" not in right.layers


def test_full_table_needs_one_configuration() -> None:
    registry = make_registry()
    cos, sin = registry.full_table("c4", "cpu")
    assert (cos.shape, sin.shape) == ((512, 64), (512, 64))
    with pytest.raises(LayoutError, match="one configuration with group 'default', found 2"):
        registry.full_table("default", "cpu")
    with pytest.raises(LayoutError, match=r"found 'c8'; known are \['c128', 'c4', 'default'\]"):
        registry.full_table("c8", "cpu")


def test_an_unknown_layer_names_the_known_ones() -> None:
    with pytest.raises(LayoutError, match=r"found 'layers.9.attn'; known are \['layers.0.attn'"):
        make_registry().config_of("layers.9.attn")


def test_registering_again_must_agree() -> None:
    registry = make_registry()
    registry.register("layers.0.attn", PLAIN)
    with pytest.raises(LayoutError, match="use one registry a model"):
        registry.register("layers.0.attn", YARN)
    with pytest.raises(LayoutError, match="use one registry a model"):
        registry.register("layers.0.attn", PLAIN, groups=("c4",))
    assert registry.config_of("layers.0.attn") == PLAIN
    with pytest.raises(LayoutError, match="at least one group"):
        registry.register("layers.4.attn", PLAIN, groups=())


def test_a_single_group_may_be_a_plain_string() -> None:
    registry = RopeRegistry()
    registry.register("layer", PLAIN, groups="c4")
    assert registry.groups == ("c4",)
    assert registry.configs() == ()
