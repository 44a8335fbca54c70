"""local_metadata against the loop oracle of ``support`` and the table of reported incidents."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError, TokenShard
from dsacp.kernels import LocalMetadata, local_metadata

TABLE = {
    "docstring": (3, 45, [0, 1, 3, 6, 10, 15, 21, 28, 36, 45], [*range(1, 10)], 1,
                  [0] * 6 + [6, 13, 15, 15], [0] * 5 + [6, 7, 2, 0]),
    "one_long_request": (4, 13, [0, 13], [113], 2, [0, 4], [112]),
    "one_long_request_last": (4, 13, [0, 13], [113], 3, [0, 1], [113]),
    "fewer_tokens_than_ranks": (8, 1, [0, 1], [500], 0, [0, 1], [500]),
    "fewer_tokens_than_ranks_idle": (8, 1, [0, 1], [500], 5, [0, 0], [0]),
    "empty_seats_0": (4, 8, [0, 4, 8, 8, 8], [33, 90, 0, 0], 0, [0, 2, 2, 2, 2], [31, 0, 0, 0]),
    "empty_seats_1": (4, 8, [0, 4, 8, 8, 8], [33, 90, 0, 0], 1, [0, 2, 2, 2, 2], [33, 0, 0, 0]),
    "empty_seats_2": (4, 8, [0, 4, 8, 8, 8], [33, 90, 0, 0], 2, [0, 0, 2, 2, 2], [0, 88, 0, 0]),
    "spec_example": (2, 8, [0, 6, 8], [20, 2], 0, [0, 4, 4], [18, 0]),
    "dummy_mixed_1": (4, 16, [0, 5, 6, 10, 16], [5, 40, 20, 0], 1, [0, 1, 2, 4, 4], [5, 40, 18, 0]),
    "dummy_mixed_3": (4, 16, [0, 5, 6, 10, 16], [5, 40, 20, 0], 3, [0, 0, 0, 0, 4], [0] * 4),
    "tp_3_of_16": (3, 16, [0, 4, 8, 12, 16], [9] * 4, 2, [0, 0, 0, 0, 4], [0, 0, 0, 9]),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_incident_table(case: tuple, check_local) -> None:
    """The example of upstream U21, reported batches, and a mixed one with its dummy request."""
    tp, tokens, starts, lens, rank, local, visible = case
    got = check_local("reference", starts, lens, TokenShard(tokens, tp, rank))
    assert got[:2] == (local, visible)


def test_padded_one_token_rows_have_no_length(check_local) -> None:
    """vllm-ascend #16168: 13 padded rows count as queries and see nothing."""
    lens = [101, 58, 10] + [0] * 13
    for rank in range(4):
        starts, visible, _ = check_local("reference", [*range(17)], lens, TokenShard(16, 4, rank))
        assert starts[-1] == 4
        assert visible == (lens if rank == 0 else [0] * 16)


def test_start_position_of_a_dummy_request_is_not_negative(check_local) -> None:
    """Upstream U21: the naive difference is -6 for the dummy request of [0, 5, 6, 10, 16]."""
    got = check_local("reference", [0, 5, 6, 10, 16], [5, 40, 20, 0], TokenShard(16, 4, 0))
    assert got[2] == [0, 39, 16, 0]


def test_non_causal_rows_see_the_whole_length(check_local) -> None:
    """DSpark, #13249: rank 1 of tp 4 sees 105 and 45 where a causal rank sees 105 and 41."""
    batch = ("reference", [0, 5, 10], [105, 45], TokenShard(10, 4, 1))
    assert check_local(*batch, causal=False)[1] == [105, 45]
    assert check_local(*batch, causal=True)[1] == [105, 41]


@pytest.mark.parametrize("tp", [1, 2, 3, 5, 7, 8, 13, 24, 63, 64])
def test_ranks_partition_the_tokens(tp: int, check_local) -> None:
    starts, lens = [0, 7, 7, 8, 61, 97], [30, 0, 1, 53, 99]
    shards = [TokenShard(97, tp, rank) for rank in range(tp)]
    owned = [check_local("reference", starts, lens, shard)[0][-1] for shard in shards]
    assert sum(owned) == 97


@settings(max_examples=50, deadline=None)
@given(
    queries=st.lists(st.integers(0, 9), max_size=12),
    extra=st.integers(0, 9),
    tp=st.integers(1, 64),
    causal=st.booleans(),
    data=st.data(),
)
def test_random_batches(
    queries: list[int], extra: int, tp: int, causal: bool, data: st.DataObject, check_local
) -> None:
    starts = [sum(queries[:index]) for index in range(len(queries) + 1)]
    lens = [data.draw(st.one_of(st.just(0), st.integers(q, 90))) for q in queries]
    shard = TokenShard(starts[-1] + extra, tp, data.draw(st.integers(0, tp - 1)))
    check_local("reference", starts, lens, shard, causal)


def test_allocates_when_no_buffers_are_given() -> None:
    starts, lens = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    out = local_metadata(starts, lens, TokenShard(2, 1, 0))
    assert (out.query_start_loc.tolist(), out.seq_lens.tolist()) == ([0, 2], [9])


@pytest.mark.parametrize(
    ("starts", "lens", "numbers"),
    [
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32), "4 .*3"),
        (torch.zeros(4, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), "int64"),
        (torch.zeros(8, dtype=torch.int32)[::2], torch.zeros(3, dtype=torch.int32), "stride"),
    ],
)
def test_bad_input_names_what_was_found(
    starts: torch.Tensor, lens: torch.Tensor, numbers: str
) -> None:
    with pytest.raises(LayoutError, match=numbers):
        local_metadata(starts, lens, TokenShard(4, 1, 0))


@pytest.mark.parametrize("field", ["query_start_loc", "seq_lens", "start_pos"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda view: view[:-1], "entries, found"),
        (lambda view: view.as_strided((9,), (1,)), "entries, found 9"),
        (lambda view: view.float(), "int32, found torch.float32"),
        (lambda view: view.bool(), "int32, found torch.bool"),
        (lambda view: view[:1].expand(view.numel()), "stride"),
        (lambda view: view.to("meta"), "on meta"),
        (lambda view: view.tolist(), "found a list"),
    ],
)
def test_buffers_of_another_kind_are_refused(
    field: str, change: Callable[[torch.Tensor], Any], text: str
) -> None:
    """torch resized a view that was one entry short, over its neighbour, and cast to floats."""
    storage = torch.full((60,), 77, dtype=torch.int32)
    views = {
        "query_start_loc": storage[:3],
        "seq_lens": storage[20:22],
        "start_pos": storage[40:42],
    }
    out = LocalMetadata(**{**views, field: change(views[field])})
    starts, lens = (torch.tensor(v, dtype=torch.int32) for v in ([0, 4, 8], [9, 12]))
    with pytest.raises(LayoutError, match=text):
        local_metadata(starts, lens, TokenShard(8, 1, 0), out=out)
    assert storage.unique().tolist() == [77]
