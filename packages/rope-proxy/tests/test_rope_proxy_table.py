import math

import pytest
import torch

from dsacp.core import CapacityError, LayoutError
from dsacp.rope_proxy import RopeConfig, build_table, inverse_frequencies

DEEPSEEK = RopeConfig(64, 65536, 10000.0, scaling_factor=16.0)


def oracle(config: RopeConfig, position: int, pair: int) -> float:
    """The angle of upstream U32 in plain Python floats."""
    rd, orig = config.rotary_dim, config.max_position_embeddings
    plain = config.base ** (-2 * pair / rd)

    def dim(rotations: float) -> float:
        return rd * math.log(orig / (2 * math.pi * rotations)) / (2 * math.log(config.base))

    low = max(math.floor(dim(config.beta_fast)), 0)
    high = min(math.ceil(dim(config.beta_slow)), rd - 1)
    ramp = min(max((pair - low) / ((high - low) or 0.001), 0.0), 1.0)
    return position * float(plain * (1 - ramp) + plain / config.scaling_factor * ramp)


def test_yarn_range_of_deepseek_v4() -> None:
    assert DEEPSEEK.yarn_range == (20, 33)
    assert DEEPSEEK.table_length == 1048576


def test_pairs_up_to_low_keep_their_frequency_and_later_ones_do_not() -> None:
    plain = inverse_frequencies(RopeConfig(64, 65536, 10000.0))
    yarn = inverse_frequencies(DEEPSEEK)
    assert torch.equal(yarn[:21], plain[:21])
    assert bool((yarn[21:] < plain[21:]).all())


@pytest.mark.parametrize(
    "config",
    [
        RopeConfig(64, 1000, 10000.0),
        RopeConfig(64, 300, 10000.0, 4.0),
        RopeConfig(8, 97, 40000.0, 2.5),
        RopeConfig(6, 33, 500.0, 3.0, beta_fast=8, beta_slow=2),
    ],
    ids=["plain", "yarn", "odd-length", "odd-pairs"],
)
def test_table_follows_the_formula(config: RopeConfig) -> None:
    cos, sin = build_table(config, "cpu")
    assert cos.dtype is torch.float32
    assert cos.shape == sin.shape == (config.table_length, config.rotary_dim)
    for position in (0, 1, 7, config.table_length - 1):
        for column in range(config.rotary_dim):
            angle = oracle(config, position, column // 2)
            assert cos[position, column].item() == pytest.approx(math.cos(angle), abs=2e-4)
            assert sin[position, column].item() == pytest.approx(math.sin(angle), abs=2e-4)


def test_row_zero_leaves_a_head_unrotated_and_nothing_is_scaled() -> None:
    """No attention factor: cos and sin stay on the unit circle also under YaRN."""
    cos, sin = build_table(RopeConfig(64, 256, 10000.0, 16.0), "cpu")
    assert bool((cos[0] == 1).all())
    assert bool((sin[0] == 0).all())
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(cos))


def test_factor_one_is_plain_rope_whatever_the_betas() -> None:
    plain = build_table(RopeConfig(64, 128, 10000.0), "cpu")
    same = build_table(RopeConfig(64, 128, 10000.0, 1.0, beta_fast=3, beta_slow=2), "cpu")
    for left, right in zip(plain, same, strict=True):
        assert torch.equal(left, right)


def test_values_come_in_pairs() -> None:
    cos, sin = build_table(RopeConfig(10, 50, 10000.0, 2.0), "cpu")
    for table in (cos, sin):
        assert torch.equal(table[:, 0::2], table[:, 1::2])


def test_limits_that_would_cross_leave_fast_pairs_alone() -> None:
    config = RopeConfig(8, 10**6, 10.0, 2.0)
    assert config.yarn_range[0] <= config.yarn_range[1]
    torch.testing.assert_close(
        inverse_frequencies(config), inverse_frequencies(RopeConfig(8, 10**6, 10.0))
    )


def test_a_position_past_the_table_is_refused() -> None:
    """vLLM #57941: the drafter's RoPE table was shorter than the target's context."""
    config = RopeConfig(64, 8192, 10000.0)
    config.check_position(8191)
    with pytest.raises(CapacityError, match="needs 8193 RoPE rows, .* holds 8192"):
        config.check_position(8192)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rotary_dim": 7}, "even rotary_dim"),
        ({"rotary_dim": 0}, "even rotary_dim"),
        ({"max_position_embeddings": 0}, "max_position_embeddings >= 1"),
        ({"base": 1.0}, "base > 1"),
        ({"scaling_factor": 0.5}, "scaling_factor >= 1"),
        ({"beta_slow": 0}, "beta_slow > 0"),
        ({"beta_fast": 0.5}, "beta_fast >= beta_slow"),
    ],
)
def test_a_configuration_out_of_range_is_refused(change: dict[str, float], message: str) -> None:
    values: dict[str, float] = {"rotary_dim": 64, "max_position_embeddings": 64, "base": 10000.0}
    with pytest.raises(LayoutError, match=message):
        RopeConfig(**{**values, **change})  # type: ignore[arg-type]
