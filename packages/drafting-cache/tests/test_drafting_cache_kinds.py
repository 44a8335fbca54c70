"""Buckets of kind uniform(K+1) take their own batches only; elsewhere starts end at T."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsacp.core import CapacityError, DsacpError, LayoutError

Make = Callable[..., Any]


def words(host: Any) -> list[torch.Tensor]:
    return [storage.view(torch.int32).clone() for storage in host.builder.storages()]


def refused(host: Any, batch: Any, error: type[DsacpError], text: str) -> None:
    """Through every entry point, without a write."""
    host.builder.build_all(host.batch([4] * 4, [60] * 4, bucket=16))
    before = words(host)
    for entry in (host.builder.build, host.builder.build_all, host.builder.stage):
        with pytest.raises(error, match=text):
            entry(batch)
    assert all(map(torch.equal, words(host), before))


@pytest.mark.parametrize("padding", ["dummy", "repeat"])
@pytest.mark.parametrize(
    ("queries", "text"),
    [
        ([1, 1], r"kind uniform\(4\) in bucket 8, 4 tokens a request, found 2 tokens of 2"),
        ([8], r"kind uniform\(4\) in bucket 8, 4 tokens a request, found 8 tokens of 1"),
        ([5, 3], r"uniform\(4\) requests of 4 tokens each, found 5 tokens of request 0"),
        ([4, 0], r"kind uniform\(4\) .*found 4 tokens of 2 requests"),
    ],
)
def test_uniform_refuses_batches_of_other_shapes(
    make_host: Make, padding: str, queries: list[int], text: str
) -> None:
    """Two one-token requests, one of 8 and 5+3 ran in bucket 8, with starts [0, 1, 2] of 8."""
    host = make_host(padding=padding)
    batch = host.batch(queries, [50] * len(queries), bucket=8)
    refused(host, batch, LayoutError, text)
    host.builder.build_all(replace(batch, bucket=None))


def test_uniform_admits_what_bucket_finds(make_host: Make) -> None:
    """bucket() refused what a build then took, so that neither said which shapes a capture has."""
    host = make_host()
    capacity = host.builder.config.capacity
    taken = 0
    for reqs in range(7):
        for query_len in range(1, 6):
            batch = host.batch([query_len] * reqs, [50] * reqs)
            found = capacity.bucket(batch.num_tokens, reqs, uniform=query_len == 4)
            for bucket in (8, 16):
                may = reqs == 0 or (found is not None and found <= bucket)
                try:
                    step = host.builder.build(replace(batch, bucket=bucket))
                except DsacpError:
                    assert not may, (reqs, query_len, bucket)
                else:
                    assert may, (reqs, query_len, bucket)
                    assert step.groups["draft0"].query_start_loc[-1] == bucket
                    taken += 1
    assert taken == 16


def test_a_later_step_in_a_uniform_bucket_has_one_token_a_request(make_host: Make) -> None:
    """Only totals were compared: 2 + 0 tokens ran as two one-token requests."""
    host = make_host()
    with pytest.raises(LayoutError, match=r"uniform\(1\) requests of 1 tokens each, found 2"):
        host.builder.build_for_drafting(host.batch([2, 0], [50, 20], bucket=8), 1)


def test_dummy_padding_needs_a_spare_row(make_host: Make) -> None:
    """Four requests in four padded rows of 8 tokens had starts [0, 1, 3, 4, 7]: FIA wants 8."""
    host = make_host()
    batch = replace(host.batch([1, 2, 1, 3], [50] * 4), num_tokens_padded=8, num_reqs_padded=4)
    refused(host, batch, CapacityError, "num_reqs_padded=5, or num_tokens_padded=7")
    step = host.builder.build(replace(batch, num_reqs_padded=5))
    assert step.groups["draft0"].query_start_loc.tolist() == [0, 1, 3, 4, 7, 8]
    idle = replace(host.batch([], []), num_tokens_padded=8, num_reqs_padded=0)
    refused(host, idle, CapacityError, "num_reqs_padded=1, or num_tokens_padded=0")


def test_repeated_starts_need_no_spare_row(make_host: Make) -> None:
    host = make_host(padding="repeat")
    batch = replace(host.batch([1, 2, 1, 3], [50] * 4), num_tokens_padded=8, num_reqs_padded=4)
    step = host.builder.build(batch)
    assert step.groups["draft0"].query_start_loc.tolist() == [0, 1, 3, 4, 7]
