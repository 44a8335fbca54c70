"""What a work plan covers, and that attention leaves every other row alone (upstream U8, U9)."""

import pytest
import torch
from attention_cases import batch_of, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dsacp.core import LayoutError
from dsacp.kernels import covered_rows, sparse_attention

# Upstream U7: query starts, cores and range ends of the published plans.
GOLDEN = {
    "G1": ("a2", 64, 4, [0, 4, 8, 9, 9, 12], [(0, 3), (1, 2), (4, 0), (5, 0)]),
    "G2": ("a2", 64, 4, [0, 4, 8, 9, 9, 12], [(0, 2), (1, 1), (4, 0), (5, 0)]),
    "G4": ("a2", 64, 4, [0, 10], [(0, 3), (0, 5), (0, 8), (1, 0)]),
    "G5": ("a2", 64, 4, [0, 4, 8, 12, 16], [(0, 2), (1, 0), (1, 2), (4, 0)]),
    "G6": ("a2", 64, 24, [0, 1, 2], [(2, 0)]),
    "G8": ("a2", 16, 3, [0, 2, 3, 10], [(1, 0), (2, 3), (3, 0)]),
    "K1": ("a5", 64, 4, [0, 4, 8], [(0, 1), (0, 2), (0, 3), (2, 0)]),
    "K2": ("a5", 128, 8, [0, 4, 8], [(0, 1), (0, 2), (0, 3), (2, 0)]),
    "K3": ("a5", 128, 8, [0, 1, 2, 3], [(1, 0), (2, 0), (3, 0)]),
}


def starts(values):
    return torch.tensor(values, dtype=torch.int32)


def mask(words, qsl, family="a2", heads=64, cores=8, rows=1, **kwargs):
    return covered_rows(words, starts(qsl), family, heads, cores, rows, **kwargs).tolist()


@pytest.mark.parametrize(("family", "heads", "cores", "qsl", "ends"), GOLDEN.values(), ids=GOLDEN)
def test_published_plans_cover_everything(family, heads, cores, qsl, ends):
    words = plan_of(ends, family=family, paired=heads == 128, num_cores=cores)
    assert mask(words, qsl, family, heads, cores) == [True] * qsl[-1]
    total = qsl[-1] + 3
    assert (
        mask(words, qsl, family, heads, cores, num_tokens=total) == [True] * qsl[-1] + [False] * 3
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_cores_left_out_leave_their_rows(data):
    """Decode random legal plans with some cores disabled, against loops over the ranges."""
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    family, heads = data.draw(st.sampled_from([("a2", 64), ("a5", 64), ("a5", 128)]))
    qsl = [0]
    for count in counts:
        qsl.append(qsl[-1] + count)
    rows = [(b, r) for b, count in enumerate(counts) for r in range(count)]
    cuts = data.draw(st.sets(st.sampled_from([(len(counts), 0), *rows]), max_size=5))
    ends = [*sorted(cuts - {(0, 0), (len(counts), 0)}), (len(counts), 0)]
    words = plan_of(ends, family=family, paired=heads == 128, num_cores=16)
    off = data.draw(st.sets(st.integers(0, len(ends) - 1)))
    size, copies = (9 if family == "a5" else 8), (2 if heads == 128 else 1)
    for core in off:
        # One half of a pair is enough to spoil its rows.
        words[core * copies * size] = 0
    begins = [(0, 0), *ends[:-1]]
    expected = [
        any(begins[c] <= row < ends[c] for c in range(len(ends)) if c not in off) for row in rows
    ]
    assert mask(words, qsl, family, heads, 16) == expected


def test_core0_start_is_assumed_on_a2_and_read_on_a5():
    ends = [(1, 0), (2, 0)]
    a2 = plan_of(ends, core0_start=(0, 2))
    a5 = plan_of(ends, core0_start=(0, 2), family="a5")
    assert mask(a2, [0, 3, 5]) == [True] * 5
    assert mask(a5, [0, 3, 5], "a5") == [False, False, True, True, True]


def test_plan_for_fewer_requests_loses_the_tail():
    """#16168's shape: a plan of 3 requests, a batch of 5."""
    words = plan_of([(1, 2), (3, 0)])
    assert mask(words, [0, 1, 5, 6, 7, 8]) == [True] * 6 + [False] * 2


def test_plan_for_more_requests_covers_the_batch():
    assert mask(plan_of([(9, 0), (16, 0)]), [0, 2, 3]) == [True] * 3


def test_fewer_cores_than_planned_lose_rows():
    words = plan_of([(0, 1), (0, 2), (1, 0)])
    assert mask(words, [0, 4], cores=2) == [True, True, False, False]


def test_a_full_first_request_is_taken_by_a_later_s2_cursor():
    """A2 includes the end request when only the key cursors differ, and then all its rows."""
    words = plan_of([(1, 0), (2, 0)])
    words[8 + 4 : 8 + 7] = starts([1, 0, 1])
    assert mask(words, [0, 2, 4]) == [True] * 4


def test_indexer_rows_are_four_tokens():
    words = plan_of([(0, 1), (1, 0)])
    words[8] = 0
    assert mask(words, [0, 6, 7], rows=4) == [True] * 4 + [False] * 3


@pytest.mark.parametrize(("family", "heads"), [("a2", 4), ("a5", 64), ("a5", 128)])
def test_attention_keeps_the_poison_of_uncovered_rows(family, heads):
    shape = [(3, 9), (2, 0), (4, 30)]
    batch = batch_of(shape, ratio=4, topk=3, heads=heads, extra_tokens=2)
    ends = [(0, 2), (2, 1), (3, 0)]
    words = plan_of(ends, family=family, paired=heads == 128)
    copies, size = (2 if heads == 128 else 1), (9 if family == "a5" else 8)
    words[copies * size] = 0
    full = sparse_attention(*batch.args(), **batch.options())
    out = torch.full_like(full, 777.0)
    sparse_attention(
        *batch.args(),
        **batch.options(),
        out=out,
        sas_metadata=words,
        num_cores=8,
        device_family=family,
    )
    covered = torch.tensor([True] * 2 + [False] * 4 + [True] * 3 + [False] * 2)
    assert out[~covered].eq(777).all()
    assert torch.equal(out[covered], full[covered])


def test_attention_with_garbage_words_computes_nothing():
    batch = batch_of([(3, 9), (2, 5)])
    words = torch.full((1024,), 0x7FFFFFFF, dtype=torch.int32)
    out = sparse_attention(*batch.args(), **batch.options(), sas_metadata=words, num_cores=24)
    assert out.isnan().all()


@pytest.mark.parametrize(
    ("family", "heads", "cores", "size", "message"),
    [
        ("a3", 64, 8, 1024, "device family"),
        ("a2", 64, 0, 1024, "num_cores"),
        ("a2", 64, 37, 1024, "cores"),
        ("a5", 128, 7, 1024, "even core count"),
        ("a5", 64, 36, 320, "324 plan words"),
    ],
)
def test_bad_plans_are_refused(family, heads, cores, size, message):
    words = torch.zeros(size, dtype=torch.int32)
    with pytest.raises(LayoutError, match=message):
        covered_rows(words, starts([0, 1]), family, heads, cores)


def test_mask_is_written_between_guards():
    store = torch.ones(9, dtype=torch.bool)
    store[2:7] = False
    covered_rows(plan_of([]), starts([0, 5]), "a2", 64, 8, out=store[2:7])
    assert store.tolist() == [True] * 2 + [False] * 5 + [True] * 2
    with pytest.raises(LayoutError, match="contiguous bool"):
        covered_rows(plan_of([]), starts([0, 5]), "a2", 64, 8, out=torch.ones(5))
    with pytest.raises(LayoutError, match="tokens_per_row"):
        covered_rows(plan_of([]), starts([0, 5]), "a2", 64, 8, 0)
