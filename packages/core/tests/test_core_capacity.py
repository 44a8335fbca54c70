import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import CapacityError, DraftCapacity, LayoutError, align_capture_sizes


def test_rows_of_later_steps_are_the_padded_tokens() -> None:
    """vllm-ascend #16168: bucket 16 gave 16 one-token requests, buffers held max_num_seqs=6."""
    capacity = DraftCapacity.from_config(6, 24, 3, 4, (16,))
    assert [capacity.rows(step, 16) for step in range(3)] == [4, 16, 16]
    assert capacity.max_rows >= 16
    assert capacity.max_reqs == 17
    assert capacity.max_tokens == 24


def test_rows_of_later_steps_are_the_padded_requests_in_layout_requests() -> None:
    capacity = DraftCapacity.from_config(6, 24, 3, 4, (12, 24), layout="requests")
    assert capacity.capture_sizes == (12, 24)
    assert [capacity.rows(step, 24) for step in range(3)] == [6, 8, 8]
    assert capacity.max_rows == 8


def test_a_capture_larger_than_max_num_seqs_sizes_the_buffers() -> None:
    """TensorRT-LLM #10688: capture size 113 with max_batch_size 4 needed 114 entries of 5."""
    capacity = DraftCapacity.from_config(4, 16, 3, 1, (112,))
    assert capacity.max_reqs == 113
    assert capacity.max_tokens == 112
    assert capacity.max_rows == 112


@pytest.mark.parametrize("layout", ["tokens", "requests"])
def test_one_bound_holds_the_rows_of_every_step(layout: Any) -> None:
    """max_num_seqs 100 with tp 8: later steps of 104 rows read inputs that held 101."""
    capacity = DraftCapacity.from_config(100, 2048, 3, 8, layout=layout)
    assert capacity.max_rows == capacity.max_reqs == 104
    with pytest.raises(CapacityError, match=r"max_reqs >= 104 .*found 101"):
        replace(capacity, max_reqs=101)


def test_captures_that_all_miss_the_grid_are_refused_with_both_numbers() -> None:
    """TensorRT-LLM #10688: sizes 1, 17 and 113 cannot hold whole requests of 4 tokens."""
    with pytest.raises(LayoutError, match=r"lcm\(K\+1=4, tp=1\)=4, found \[1, 17, 113\]"):
        DraftCapacity.from_config(4, 16, 3, 1, (1, 17, 113))


def test_an_off_grid_host_size_is_dropped_aloud_and_never_changed() -> None:
    """vllm-ascend #3909, #3910: with K=2, capture size 40 is no multiple of 3."""
    with pytest.warns(UserWarning, match=r"\[40\] are not multiples of lcm\(K\+1=3, tp=1\)=3"):
        capacity = DraftCapacity.from_config(14, 64, 2, 1, (24, 40, 48))
    assert capacity.capture_sizes == (24, 48)
    assert capacity.bucket(42, 14, uniform=True) == 48


def test_a_batch_above_the_largest_bucket_reports_none() -> None:
    """vllm-ascend #16049, #16623: max_num_seqs 12 with buckets up to 8 silently ran eager."""
    capacity = DraftCapacity.from_config(12, 64, 1, 1, (2, 4, 8, 16))
    assert capacity.bucket(16, 8, uniform=True) == 16
    assert capacity.bucket(18, 9, uniform=True) is None


def test_one_more_token_a_request_than_the_budget_gets_no_bucket() -> None:
    """vLLM #32591: 2048 tokens and 32 requests became 2080 tokens in the drafter."""
    capacity = DraftCapacity.from_config(32, 2048, 3, 1, (2048,))
    assert capacity.max_tokens == 2048
    assert capacity.bucket(2048, 512, uniform=True) == 2048
    assert capacity.bucket(2080, 520, uniform=True) is None


def test_the_token_budget_grows_to_a_full_batch_of_drafts() -> None:
    assert DraftCapacity.from_config(520, 2048, 3, 1).max_tokens == 2080


@pytest.mark.parametrize(("drafts", "tp_size", "grid"), [(2, 4, 12), (5, 8, 24), (3, 4, 4)])
def test_own_captures_are_aligned_to_requests_and_ranks(
    drafts: int, tp_size: int, grid: int
) -> None:
    """vLLM #29036, vllm-ascend #2719: sizes must divide by K+1 and by tp."""
    assert align_capture_sizes([1, grid, grid + 1], drafts, tp_size) == (grid, 2 * grid)


def test_a_bucket_matches_only_its_own_shape() -> None:
    capacity = DraftCapacity.from_config(16, 64, 3, 4, (16, 32))
    assert capacity.bucket(16, 4, uniform=True) == 16
    assert capacity.bucket(16, 16, uniform=False) is None
    assert capacity.bucket(16, 16, uniform=True) is None
    assert capacity.bucket(16, 5, uniform=True) is None
    assert capacity.bucket(0, 0, uniform=True) is None
    assert capacity.bucket(20, 5, uniform=True) == 32


def test_a_bucket_of_kind_uniform_admits_its_own_totals_only() -> None:
    """Two one-token requests, or one of 8, ran in bucket 8: padded starts did not end at T."""
    capacity = DraftCapacity.from_config(16, 64, 3, 4, (16, 32))
    assert str(capacity.kind(16)) == "uniform(4)"
    for bucket in (16, 32):
        for tokens in range(40):
            for reqs in range(40):
                fits = tokens == 4 * reqs and tokens <= bucket
                assert capacity.admits(bucket, tokens, reqs) == fits
                if reqs and capacity.bucket(tokens, reqs, uniform=True) == bucket:
                    assert fits
    assert capacity.admits(16, 0, 0)
    assert not capacity.admits(20, 20, 5)


def test_no_captures_means_eager() -> None:
    capacity = DraftCapacity.from_config(4, 16, 3, 1)
    assert capacity.capture_sizes == ()
    assert capacity.bucket(16, 4, uniform=True) is None


@pytest.mark.parametrize("step", [-1, 3, 0.5])
def test_a_step_that_does_not_exist_is_refused(step: Any) -> None:
    with pytest.raises(LayoutError, match=rf"draft step in 0..2 as a whole number, found {step}"):
        DraftCapacity.from_config(4, 16, 3, 1, (16,)).rows(step, 16)


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        (13, r"multiples of lcm\(K\+1=4, tp=2\)=4, found 13: use 16"),
        (0, "a bucket >= 1 as a whole number, found 0"),
        (-4, "a bucket >= 1 as a whole number, found -4"),
        (16.0, "a bucket >= 1 as a whole number, found 16.0"),
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_a_bucket_that_no_capture_has_is_refused(step: int, bucket: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        DraftCapacity.from_config(4, 16, 3, 2, (16,)).rows(step, bucket)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 16, 3, 1), "max_num_seqs >= 1"),
        ((4, 0, 3, 1), "max_num_batched_tokens >= 1"),
        ((4, 16, 0, 1), "num_draft_tokens >= 1"),
        ((4, 16, 3, 0), "tp_size in 1..64 as a whole number, found 0"),
        ((4, 16, 3, 65), "tp_size in 1..64 as a whole number, found 65"),
        ((6.5, 16, 3, 1), "max_num_seqs >= 1 as a whole number, found 6.5"),
        ((4, 16.0, 3, 1), "max_num_batched_tokens >= 1 as a whole number, found 16.0"),
        ((4, 16, 3.0, 1), "num_draft_tokens >= 1 as a whole number, found 3.0"),
        ((4, 16, 3, 1.0), "tp_size in 1..64 as a whole number, found 1.0"),
        ((2**30, 16, 3, 1), "max_tokens >= 1 as a whole number below 2147483648"),
        ((4, 16, 3, 1, (16, -4)), "a capture size >= 1 as a whole number, found -4"),
        ((4, 16, 3, 1, (16, 0)), "a capture size >= 1 as a whole number, found 0"),
        ((4, 16, 3, 1, (16.0,)), "a capture size >= 1 as a whole number, found 16.0"),
    ],
)
def test_a_count_out_of_range_is_refused(values: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        DraftCapacity.from_config(*values)


@pytest.mark.parametrize("changes", [{"tp_size": 65}, {"max_rows": 8.0}, {"capture_sizes": (-4,)}])
def test_bounds_made_by_hand_are_checked_too(changes: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match=r"found (65|8\.0|-4)"):
        replace(DraftCapacity.from_config(4, 16, 3, 1), **changes)


@pytest.mark.parametrize(
    ("arguments", "found"), [(([0], 3, 1), 0), (([8.0], 3, 1), 8.0), (([8], 3, 65), 65)]
)
def test_own_captures_that_no_engine_has_are_refused(arguments: Any, found: float) -> None:
    with pytest.raises(LayoutError, match=f"found {found}"):
        align_capture_sizes(*arguments)


def test_integers_of_other_libraries_are_whole_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert DraftCapacity.from_config(numpy.int64(4), 16, 3, 1).max_reqs == 5


def test_a_budget_below_one_request_is_refused_with_both_numbers() -> None:
    with pytest.raises(CapacityError, match=r"needs 4 tokens .* holds 3"):
        DraftCapacity.from_config(1, 3, 3, 1)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(LayoutError, match="found 'rows'"):
        DraftCapacity.from_config(1, 16, 3, 1, layout="rows")  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(
    seqs=st.integers(1, 300),
    budget=st.integers(17, 9000),
    drafts=st.integers(1, 8),
    tp_size=st.integers(1, 16),
    wanted=st.lists(st.integers(1, 600), max_size=5),
    layout=st.sampled_from(["tokens", "requests"]),
)
def test_every_bucket_fits_every_buffer(
    seqs: int, budget: int, drafts: int, tp_size: int, wanted: list[int], layout: str
) -> None:
    sizes = align_capture_sizes(wanted, drafts, tp_size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capacity = DraftCapacity.from_config(seqs, budget, drafts, tp_size, sizes, layout)  # type: ignore[arg-type]
    assert capacity.capture_sizes == sizes
    assert capacity.max_tokens % tp_size == capacity.max_rows % tp_size == 0
    assert capacity.max_reqs > seqs
    for bucket in sizes:
        assert bucket % math.lcm(drafts + 1, tp_size) == 0
        assert bucket <= capacity.max_tokens
        assert capacity.rows(0, bucket) < capacity.max_reqs
        assert all(capacity.rows(step, bucket) <= capacity.max_rows for step in range(1, drafts))
        assert capacity.bucket(bucket, bucket // (drafts + 1), uniform=True) == bucket


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 200), st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_the_bucket_is_the_smallest_that_holds_the_batch(num_reqs: int, wanted: list[int]) -> None:
    sizes = align_capture_sizes(wanted, 3, 2)
    capacity = DraftCapacity.from_config(8, 64, 3, 2, sizes)
    fitting = [size for size in sizes if size >= 4 * num_reqs]
    assert capacity.bucket(4 * num_reqs, num_reqs, uniform=True) == min(fitting, default=None)
