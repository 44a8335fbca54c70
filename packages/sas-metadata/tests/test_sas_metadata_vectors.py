"""Recorded outputs of upstream's planner, and golden vectors for upstream U7, U13."""

import json
from functools import cache
from pathlib import Path

import pytest

from dsacp.sas_metadata import (
    QliSpec,
    SasSpec,
    check_legal,
    core_costs,
    decode_sas,
    plan_qli,
    plan_sas,
    true_block_count,
)

VECTORS = Path(__file__).parent / "data" / "sas_planner.jsonl"
FIVE = [0, 4, 8, 9, 9, 12], [5000, 300, 128, 0, 70000]


@cache
def vectors():
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


def load(vector):
    spec = SasSpec(
        vector["num_heads"],
        vector["family"],
        vector["num_cores"],
        vector["window_left"],
        vector["window_right"],
        vector["cmp_ratio"],
        vector["cmp_topk"],
    )
    return spec, vector["query_start_loc"], vector["seq_lens"]


def ends(words, spec):
    return [item.end for item in decode_sas(words, spec)]


@pytest.mark.parametrize("index", range(200))
def test_recorded_ranges(index, make_batch, run_plan):
    vector = vectors()[index]
    spec, starts, lens = load(vector)
    words = run_plan(make_batch(spec, starts, lens))
    assert ends(words, spec) == [tuple(end) for end in vector["range_ends"]]
    check_legal(words, spec, starts, lens)


def test_all_vectors_are_here():
    assert len(vectors()) == 200


def test_balanced_is_never_worse_on_the_vectors(make_batch, run_plan):
    ratios = []
    for vector in vectors():
        spec, starts, lens = load(vector)
        loads = []
        for policy in ("upstream", "balanced"):
            words = run_plan(make_batch(spec, starts, lens), policy)
            check_legal(words, spec, starts, lens)
            loads.append(max(core_costs(spec, decode_sas(words, spec), starts, lens)))
        if loads[0]:
            ratios.append(loads[1] / loads[0])
    assert max(ratios) == 1
    assert round(sum(ratios) / len(ratios), 3) == 0.967
    assert round(min(ratios), 2) == 0.52


@pytest.mark.parametrize(
    ("cores", "heads", "ratio", "topk", "batch", "expected"),
    [
        (4, 64, 1, 0, FIVE, [(0, 3), (1, 2), (4, 0), (5, 0)]),
        (4, 64, 4, 512, FIVE, [(0, 2), (1, 1), (4, 0), (5, 0)]),
        (4, 64, 128, 0, FIVE, [(1, 0), (2, 0), (4, 1), (5, 0)]),
        (4, 64, 128, 0, ([0, 10], [10]), [(0, 3), (0, 5), (0, 8), (1, 0)]),
        (
            4, 64, 1, 0, ([0, 4, 8, 12, 16], [700, 900, 0, 0]),
            [(0, 2), (1, 0), (1, 2), (4, 0)],
        ),
        (24, 64, 1, 0, ([0, 1, 2], [0, 0]), [(2, 0)]),
        (3, 16, 4, 1024, ([0, 2, 3, 10], [4097, 9000, 7]), [(0, 1), (1, 0), (3, 0)]),
        (3, 16, 128, 0, ([0, 2, 3, 10], [65536, 900000, 4]), [(1, 0), (2, 3), (3, 0)]),
    ],
    ids=[f"G{number}" for number in range(1, 9)],
)  # fmt: skip
def test_golden_a2(cores, heads, ratio, topk, batch, expected, make_batch, run_plan):
    spec = SasSpec(heads, "a2", cores, cmp_ratio=ratio, cmp_topk=topk)
    assert ends(run_plan(make_batch(spec, *batch)), spec) == expected


def test_golden_k1_does_not_write_word_8(make_batch, run_plan):
    spec = SasSpec(64, "a5", 4, cmp_ratio=4, cmp_topk=512)
    words = run_plan(make_batch(spec, [0, 4, 8], [5000, 300]))
    assert ends(words, spec) == [(0, 1), (0, 2), (0, 3), (2, 0)]
    assert words[8:36:9].tolist() == [0] * 4


@pytest.mark.parametrize(
    ("ratio", "topk", "batch", "expected", "count"),
    [
        (128, 0, ([0, 4, 8], [50000, 300]), [(0, 1), (0, 2), (0, 3), (2, 0)], 13),
        (4, 1024, ([0, 1, 2, 3], [100, 9000, 2000]), [(1, 0), (2, 0), (3, 0)], 9),
    ],
    ids=["K2", "K3"],
)
def test_golden_pairs(ratio, topk, batch, expected, count, make_batch, run_plan):
    """Word 8 is a hand-shake count: an idle pair without it would leave the others waiting."""
    spec = SasSpec(128, "a5", 8, cmp_ratio=ratio, cmp_topk=topk)
    words = run_plan(make_batch(spec, *batch))
    assert ends(words, spec) == expected
    records = words[:72].view(8, 9)
    assert records[::2].tolist() == records[1::2].tolist()
    assert records[:, 8].tolist() == [count] * 8
    assert records[:, 0].tolist() == [1] * 2 * len(expected) + [0] * (8 - 2 * len(expected))
    assert true_block_count(spec, decode_sas(words, spec), *batch) == count


@pytest.mark.parametrize("family", ["a2", "a5"])
def test_golden_q1(family, make_batch, run_plan):
    spec = QliSpec(64, family, 4)
    words = run_plan(make_batch(spec, [0, 5, 6, 6, 18], [9000, 3, 0, 40000]))
    assert ends(words, spec) == [(3, 0), (3, 1), (3, 2), (4, 0)]
    assert words[32:].abs().sum() == 0


@pytest.mark.parametrize("policy", ["upstream", "balanced"])
@pytest.mark.parametrize("spec", [SasSpec(64), SasSpec(128, "a5", 8), QliSpec(num_cores=8)])
def test_empty_batches_give_core_0_everything(spec, policy, make_batch, run_plan):
    for starts, lens in (([0], []), ([0, 4, 8], [0, 0]), ([3, 3], [9])):
        words = run_plan(make_batch(spec, starts, lens), policy)
        assert ends(words, spec) == [(len(lens), 0)]
        assert words.abs().sum() == (2 if spec.paired else 1) * (1 + len(lens))
        check_legal(words, spec, starts, lens)


def test_other_lengths_keep_a_plan_legal(make_batch, run_plan):
    """A graph may keep a plan while lengths grow: only word 8 of paired cores can become wrong."""
    starts, lens, grown = [0, 4, 8], [700, 900], [90000, 1]
    for spec in (SasSpec(64, cmp_ratio=4, cmp_topk=512), SasSpec(64, "a5", cmp_ratio=128)):
        check_legal(run_plan(make_batch(spec, starts, lens)), spec, starts, grown)


def test_allocates_when_out_is_missing(make_batch):
    import torch

    starts, lens = (torch.tensor(v, dtype=torch.int32) for v in ([0, 4], [9000]))
    assert plan_sas(SasSpec(64), starts, lens).shape == (1024,)
    assert plan_qli(QliSpec(), starts, lens).dtype is torch.int32
