from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError, TokenShard, round_up


def shards(num_tokens: int, tp_size: int) -> list[TokenShard]:
    return [TokenShard(num_tokens, tp_size, rank) for rank in range(tp_size)]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(1, 64))
def test_ranks_tile_the_padded_tokens(num_tokens: int, tp_size: int) -> None:
    ranks = shards(num_tokens, tp_size)
    assert [rank.start for rank in ranks] == [0, *[rank.end for rank in ranks[:-1]]]
    assert ranks[-1].end == ranks[0].padded
    assert 0 <= ranks[0].padded - num_tokens < tp_size
    assert len({rank.per_rank for rank in ranks}) == 1


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(1, 64))
def test_every_real_token_has_one_owner(num_tokens: int, tp_size: int) -> None:
    ranks = shards(num_tokens, tp_size)
    assert sum(rank.real for rank in ranks) == num_tokens
    owned = [token for rank in ranks for token in range(rank.start, rank.start + rank.real)]
    assert owned == list(range(num_tokens))


def test_tokens_that_do_not_divide() -> None:
    """vLLM #29036 kind: tp=3 and 16 tokens pad to 18, rank 2 owns [12, 18) with 4 real tokens."""
    shard = TokenShard(16, 3, 2)
    assert (shard.padded, shard.per_rank, shard.start, shard.end, shard.real) == (18, 6, 12, 18, 4)


def test_fewer_tokens_than_ranks_leaves_ranks_empty() -> None:
    assert [rank.real for rank in shards(1, 8)] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert [rank.real for rank in shards(0, 4)] == [0, 0, 0, 0]


def test_one_long_request_over_four_ranks() -> None:
    assert [rank.real for rank in shards(13, 4)] == [4, 4, 4, 1]


def test_resize_keeps_the_rank() -> None:
    assert TokenShard(16, 4, 3).resize(5) == TokenShard(5, 4, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1, 1, 0), "num_tokens >= 0 as a whole number, found -1"),
        ((4, 0, 0), "tp_size in 1..64 as a whole number, found 0"),
        ((4, 65, 0), "tp_size in 1..64 as a whole number, found 65"),
        ((4, 4, 4), "tp_rank in 0..3 as a whole number, found 4"),
        ((4, 4, -1), "tp_rank in 0..3 as a whole number, found -1: rank -1 of 4"),
        ((7.5, 2, 0), "num_tokens >= 0 as a whole number, found 7.5"),
        ((4, 2.0, 0), "tp_size in 1..64 as a whole number, found 2.0"),
        ((4, 2, 0.0), "tp_rank in 0..1 as a whole number, found 0.0"),
        ((True, 1, 0), "num_tokens >= 0 as a whole number, found True"),
        ((2**31, 1, 0), "whole number below 2147483648, found 2147483648"),
        ((10**500, 1, 0), "found a number of 1661 bits"),
    ],
)
def test_a_value_out_of_range_is_refused(values: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        TokenShard(*values)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_round_up(value: int, multiple: int) -> None:
    result = round_up(value, multiple)
    assert result % multiple == 0
    assert value <= result < value + multiple
