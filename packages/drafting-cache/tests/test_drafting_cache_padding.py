"""Padded counts mean the same in every step and entry point, or are refused before a write."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from dsacp.core import CapacityError, DsacpError, LayoutError, round_up
from dsacp.drafting_cache import StepMetadata

Make = Callable[..., Any]
TP = 4


def shapes(steps: tuple[StepMetadata, ...]) -> list[tuple[int, int, int, int]]:
    """Rows and tokens as said, and as the tensors have them."""
    return [
        (
            step.num_reqs,
            step.num_tokens,
            step.groups["draft0"].seq_lens.shape[0],
            step.groups["draft0"].positions.shape[0],
        )
        for step in steps
    ]


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


def counts_of(host: Any) -> Iterator[dict[str, int | None]]:
    """Counts that a framework may say: nothing, one of them, both; on the grid and off it."""
    for reqs in (None, 0, 3, 4, 5, 6, 8, 15, 16, 17):
        for tokens in (None, 0, 8, 12, 13, 16, 17, 32, 64, 65):
            yield {"num_reqs_padded": reqs, "num_tokens_padded": tokens}


@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("padding", ["dummy", "repeat"])
def test_an_idle_rank_has_the_rows_of_a_busy_peer(
    make_host: Make, layout: str, padding: str
) -> None:
    """With 8 padded requests a busy rank had [8, 4, 4] rows, its idle peer [8, 0, 0]: a hang."""
    host = make_host(layout=layout, padding=padding, tp=(TP, 1))
    busy = replace(host.batch([4] * 3, [50, 20, 9]), num_tokens_padded=16, num_reqs_padded=8)
    idle = replace(host.batch([], []), num_tokens_padded=16, num_reqs_padded=8)
    later = 16 if layout == "tokens" else 8
    want = [(8, 16, 8, 16), *[(later, later, later, later)] * 2]
    assert shapes(host.builder.build_all(busy)) == want
    assert shapes(host.builder.build_all(idle)) == want
    for step in (1, 2):
        alone = replace(host.batch([], []), num_reqs_padded=later)
        assert shapes((host.builder.build_for_drafting(alone, step),)) == want[1:2]


@pytest.mark.parametrize("layout", ["tokens", "requests"])
def test_a_bucket_and_its_counts_have_the_same_shapes(make_host: Make, layout: str) -> None:
    """Buckets padded every step, the same counts without one only the first."""
    host = make_host(layout=layout, tp=(TP, 1))
    batch = host.batch([4] * 3, [50, 20, 9], [1, 0, 2])
    bucket = shapes(host.builder.build_all(replace(batch, bucket=16)))
    before = words(host)
    counts = {"num_tokens_padded": 16, "num_reqs_padded": 4}
    assert shapes(host.builder.build_all(replace(batch, **counts))) == bucket
    assert all(map(torch.equal, words(host), before))


@pytest.mark.parametrize("layout", ["tokens", "requests"])
@pytest.mark.parametrize("padding", ["dummy", "repeat"])
def test_counts_hold_in_all_steps_and_entries_or_are_refused(
    make_host: Make, layout: str, padding: str
) -> None:
    """num_tokens_padded and num_reqs_padded counted in step 0 alone, later steps ignored them."""
    host = make_host(layout=layout, padding=padding, tp=(TP, 1), max_num_seqs=4)
    batch = host.batch([4, 2, 6], [50, 20, 9])
    advanced = host.batch([1, 1, 1], [51, 21, 10])
    host.builder.build_all(host.batch([4] * 4, [60] * 4, bucket=16))
    served = 0
    for counts in counts_of(host):
        before = words(host)
        try:
            got = shapes(host.builder.build_all(replace(batch, **counts)))
        except DsacpError:
            assert all(map(torch.equal, words(host), before)), counts
        else:
            assert got == expected(counts, layout, padding), counts
            served += 1
        before = words(host)
        try:
            alone = shapes((host.builder.build_for_drafting(replace(advanced, **counts), 2),))
        except DsacpError:
            assert all(map(torch.equal, words(host), before)), counts
        else:
            rows = {round_up(count, TP) for count in counts.values() if count is not None} or {4}
            assert rows == {alone[0][0]} == set(alone[0]), counts
            served += 1
    assert served >= 19


def expected(
    counts: dict[str, int | None], layout: str, padding: str
) -> list[tuple[int, int, int, int]]:
    """Say the rule once more: step 0 of 3 requests and 12 tokens, then two later steps."""
    reqs, tokens = counts["num_reqs_padded"], counts["num_tokens_padded"]
    first_tokens = 12 if tokens is None else tokens
    dummy = padding == "dummy" and first_tokens > 12
    first_rows = (4 if dummy else 3) if reqs is None else reqs
    by_requests = round_up(3 if reqs is None else reqs, TP)
    by_tokens = by_requests if tokens is None else round_up(tokens, TP)
    rows = by_tokens if layout == "tokens" and by_tokens <= 16 else by_requests
    first = (first_rows, first_tokens, first_rows, round_up(first_tokens, TP))
    return [first, *[(rows, rows, rows, rows)] * 2]


@pytest.mark.parametrize(
    ("changes", "index", "error", "text"),
    [
        ({"num_reqs_padded": 2}, 0, CapacityError, "padded to 2 requests and 12 tokens"),
        ({"num_tokens_padded": 8}, 0, CapacityError, "padded to 3 requests and 8 tokens"),
        ({"num_tokens_padded": 20}, 0, CapacityError, "3 at least, and 20 by num_tokens_padded"),
        ({"num_reqs_padded": 17}, 0, CapacityError, "17 by num_reqs_padded.* hold 16"),
        ({"num_tokens_padded": 12, "bucket": 16}, 0, LayoutError, "16 as in bucket 16, found 12"),
        ({"num_reqs_padded": 3, "bucket": 16}, 0, LayoutError, "4 as in bucket 16, found 3"),
        ({"num_reqs_padded": 8, "num_tokens_padded": 16}, 1, LayoutError, "=16 .*padded=8"),
        (
            {"num_reqs_padded": 2},
            1,
            CapacityError,
            "padded to 4 requests and 4 tokens, the batch has 5",
        ),
        ({"num_tokens_padded": 20}, 1, CapacityError, "needs 20 requests and 20 tokens"),
    ],
)
def test_counts_that_cannot_be_honoured_touch_no_buffer(
    make_host: Make, changes: dict[str, Any], index: int, error: type[DsacpError], text: str
) -> None:
    """A padded count of a later step was dropped without a word, whatever it was."""
    host = make_host()
    host.builder.build_all(host.batch([4] * 4, [60] * 4, bucket=16))
    before = words(host)
    count = 3 if index == 0 else 5
    batch = replace(host.batch([1 if index else 4] * count, [50] * count), **changes)
    builder = host.builder
    build = partial(builder.build_for_drafting, draft_index=index) if index else builder.build_all
    with pytest.raises(error, match=text):
        build(batch)
    assert all(map(torch.equal, words(host), before))
