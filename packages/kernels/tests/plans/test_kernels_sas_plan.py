"""The op: many plans in one arena, copies, bounds. Ranges themselves: packages/sas-metadata."""

from itertools import pairwise

import pytest
import torch

from dsacp.core import LayoutError
from dsacp.kernels import PLAN_WORDS, plan_table, sas_plan

POISON = 0x7FFFFFFF
STARTS, LENS = [2, 6, 7, 7, 40], [900, 0, 33, 70000]
WINDOW = (0, 64, 0, 4, 127, 0, 1, 0, 0)
PAIRED = (0, 128, 1, 8, 127, 0, 128, 0, 1)
INDEXER = (1, 64, 0, 4, 0, 0, 4, 0, 0)


def arena(plans):
    """Starts and lengths, then every plan's words with three guard words around."""
    words = [POISON] * 3 + STARTS + LENS + [POISON] * 3
    offsets = []
    for _ in plans:
        offsets.append(len(words))
        words += [POISON] * (PLAN_WORDS + 3)
    return torch.tensor(words, dtype=torch.int32), offsets


def run(specs, same_as=()):
    words, offsets = arena(specs)
    before = words.clone()
    copies = dict(same_as)
    rows = [
        (3, 8, offset, 4, *spec, copies.get(index, -1), 0, 0)
        for index, (offset, spec) in enumerate(zip(offsets, specs, strict=True))
    ]
    sas_plan(words, words, words, plan_table(rows))
    plans = [words[offset : offset + PLAN_WORDS].tolist() for offset in offsets]
    for offset in offsets:
        words[offset : offset + PLAN_WORDS] = POISON
    assert torch.equal(words, before)
    return plans


def test_plans_of_one_arena_are_independent():
    together = run([WINDOW, PAIRED, INDEXER])
    assert together == [run([spec])[0] for spec in (WINDOW, PAIRED, INDEXER)]
    assert len({tuple(words) for words in together}) == 3
    assert all(POISON not in words for words in together)


def test_a_plan_copies_an_earlier_one():
    plans = run([INDEXER, WINDOW, WINDOW, INDEXER], same_as=[(2, 1), (3, 0)])
    assert plans[2] == plans[1]
    assert plans[3] == plans[0]
    # What is copied are the words: a copy ignores its own specification.
    assert run([WINDOW, PAIRED], same_as=[(1, 0)])[1] == run([WINDOW])[0]


def test_ranges_follow_each_other():
    words = run([WINDOW])[0]
    records = [words[8 * core : 8 * core + 8] for core in range(4)]
    assert [record[0] for record in records] == [1] * 4
    assert records[0][1:3] == [0, 0]
    assert all(left[4:6] == right[1:3] for left, right in pairwise(records))
    assert records[-1][4:7] == [4, 0, 0]
    assert not any(words[32:])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, -1, "plan 1 needs words -1..4 of query_start_loc, which holds 5"),
        (0, 1, "plan 1 needs words 1..6 of query_start_loc, which holds 5"),
        (1, 1, "plan 1 needs words 1..5 of seq_lens, which holds 4"),
        (2, 1025, "plan 1 needs words 1025..2049 of out, which holds 2048"),
        (3, 5, "plan 1 needs words 0..6 of query_start_loc, which holds 5"),
        (4, 2, "plan 1 has kind 2, which no device plans"),
        (5, 0, "plan 1 has num_heads 0"),
        (6, -1, "plan 1 has family -1"),
        (7, 0, "plan 1 has num_cores 0"),
        (7, 37, "plan 1 has num_cores 37"),
        (8, -1, "plan 1 has window_left -1"),
        (9, -1, "plan 1 has window_right -1"),
        (10, 3, "plan 1 has cmp_ratio 3"),
        (10, 256, "plan 1 has cmp_ratio 256"),
        (11, -1, "plan 1 has cmp_topk -1"),
        (12, 2, "plan 1 has policy 2"),
        (13, 1, "plan 1 copies plan 1, which is not an earlier plan of its own"),
    ],
)
def test_a_bad_row_touches_nothing(column, value, message):
    """Plan 0 is fine: it must not be written before plan 1 is refused."""
    rows = [[0, 0, 0, 4, *WINDOW, -1, 0, 0], [0, 0, 1024, 4, *WINDOW, -1, 0, 0]]
    rows[1][column] = value
    out = torch.full((2048,), POISON, dtype=torch.int32)
    starts, lens = torch.tensor(STARTS).int(), torch.tensor(LENS).int()
    with pytest.raises(LayoutError, match=message):
        sas_plan(starts, lens, out, plan_table(rows))
    assert (out == POISON).all()


def test_pairs_of_an_odd_core_count_are_refused():
    row = [0, 0, 0, 4, *PAIRED, -1, 0, 0]
    row[7] = 7
    with pytest.raises(LayoutError, match="plan 0 has num_cores 7, which no device plans"):
        sas_plan(
            torch.tensor(STARTS).int(),
            torch.tensor(LENS).int(),
            torch.full((PLAN_WORDS,), POISON, dtype=torch.int32),
            plan_table([row]),
        )


def test_copies_of_copies_are_refused():
    rows = [(0, 0, 0, 4, *WINDOW, same_as, 0, 0) for same_as in (-1, 0, 1)]
    out = torch.full((PLAN_WORDS,), POISON, dtype=torch.int32)
    starts, lens = torch.tensor(STARTS).int(), torch.tensor(LENS).int()
    with pytest.raises(LayoutError, match="plan 2 copies plan 1, which is not an earlier plan of"):
        sas_plan(starts, lens, out, plan_table(rows))
    assert (out == POISON).all()


def test_tables_are_checked():
    starts, lens = torch.tensor(STARTS).int(), torch.tensor(LENS).int()
    out = torch.full((PLAN_WORDS,), POISON, dtype=torch.int32)
    with pytest.raises(LayoutError, match="expected 16 columns in plan 0, found 15"):
        plan_table([[0] * 15])
    with pytest.raises(LayoutError, match="at least one plan row, found none"):
        plan_table([])
    for plans in (torch.zeros(1, 16), torch.zeros(16).int(), torch.zeros(2, 32).int()[:, ::2]):
        with pytest.raises(LayoutError, match="plans as contiguous int32 \\[P, 16\\], found"):
            sas_plan(starts, lens, out, plans)
    with pytest.raises(LayoutError, match="out as contiguous 1-D int32"):
        sas_plan(starts, lens, out.long(), plan_table([(0, 0, 0, 4, *WINDOW, -1, 0, 0)]))
    assert (out == POISON).all()
