"""The Triton planner against the CPU planner, in Triton's interpreter where there is no GPU."""

import importlib.util
import os
import random

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from dsacp.kernels import PLAN_WORDS, plan_table, sas_plan

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
POISON, GUARD, GAP = 0x7FFFFFFF, 0x5AFEC0DE, 5
A2, A5 = 0, 1


def sas(heads=64, family=A2, cores=24, left=127, right=0, ratio=1, topk=0):
    return (0, heads, family, cores, left, right, ratio, topk)


def qli(family=A2, cores=24, ratio=4):
    return (1, 64, family, cores, 0, 0, ratio, 0)


def random_spec(rng):
    family, cores = rng.choice((A2, A5)), rng.choice((1, 2, 4, 24, 36))
    if rng.random() < 0.3:
        return qli(family, cores, rng.choice((1, 4, 128) if family else (1, 2, 4, 128)))
    heads = rng.choice((64, 128) if family else (8, 64))
    return sas(
        heads,
        family,
        cores + (cores % 2 if family and heads == 128 else 0),
        rng.choice((0, 3, 127)),
        rng.choice((0, 0, 0, 2, 200)),
        rng.choice((1, 4, 128)),
        rng.choice((0, 5, 512)),
    )


def random_batch(rng):
    longest, starts, lens = rng.choice((1, 4, 9, 90)), [rng.choice((0, 7))], []
    for _ in range(rng.randint(1, 12)):
        query_len = rng.choice((0, 1, longest, rng.randint(0, longest)))
        starts.append(starts[-1] + query_len)
        near = max(query_len + rng.randint(-3, 3), 0)
        lens.append(rng.choice((0, near, rng.randint(0, 700), rng.randint(0, 70000))))
    return starts, lens


def compare(jobs, launch=sas_plan, device=DEVICE):
    """Plan all jobs (starts, lengths, spec, policy, same_as) in one arena, twice; words agree."""
    words, rows = [GUARD] * GAP, []
    for starts, lens, spec, policy, same_as in jobs:
        at = len(words)
        words += starts + lens + [GUARD] * GAP + [POISON] * PLAN_WORDS + [GUARD] * GAP
        out_at = at + 2 * len(lens) + 1 + GAP
        rows.append([at, at + len(starts), out_at, len(lens), *spec, policy, same_as, 0, 0])
    expected = torch.tensor(words, dtype=torch.int32)
    found = expected.to(device).clone()
    sas_plan(expected, expected, expected, plan_table(rows), impl="reference")
    if launch is sas_plan:
        sas_plan(found, found, found, plan_table(rows, device), impl="triton")
    else:
        launch(found, found, found, rows)
    assert found.tolist() == expected.tolist(), jobs


@pytest.mark.parametrize("seed", range(64 if GPU else 4))
def test_random_batches(seed):
    rng = random.Random(seed)
    compare([(*random_batch(rng), random_spec(rng), rng.randint(0, 1), -1) for _ in range(6)])


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize(
    "spec",
    [sas(ratio=128), sas(128, A5, 8, right=3, ratio=4, topk=512), qli(A5, 36)],
    ids=["a2", "a5-pairs", "indexer"],
)
def test_more_requests_than_one_block(spec, policy):
    """The scan carries totals, keys of requests without cost, and flat rows between blocks."""
    starts = [0]
    for index in range(300):
        starts.append(starts[-1] + (0 if 120 < index < 140 else 1))
    compare([(starts, [index * 37 % 5000 for index in range(300)], spec, policy, -1)])


@pytest.mark.parametrize("policy", [0, 1])
def test_costs_beyond_int32(policy, is_npu):
    """An indexer plan of a long prefill: 8,192 rows of half a million and more each."""
    if is_npu:
        pytest.skip("on an NPU there is no int64 path: such plans are legal, but not upstream's")
    spec = qli(cores=4)
    starts, lens = [0, 32768, 32769, 40000], [1000000, 9, 900000]
    compare([(starts, lens, spec, policy, -1)])


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize(
    "spec", [sas(cores=5), sas(cores=5, ratio=4), sas(cores=5, ratio=128), qli(cores=3)]
)
def test_long_prefill(spec, policy):
    compare([([0, 20000, 20003], [20000, 70000], spec, policy, -1)])


def test_copies_plan_their_source():
    first, second = ([0, 4, 8], [900, 77]), ([0, 1, 2, 3], [5, 0, 7000])
    compare(
        [
            (*first, sas(cores=4), 0, -1),
            (*second, qli(cores=2), 1, -1),
            (*first, sas(cores=4), 0, 0),
            (*second, qli(cores=2), 1, 1),
        ]
    )


def test_nothing_to_attend_to():
    compare(
        [
            ([0, 4, 8], [0, 0], sas(), 0, -1),
            ([0, 4, 8], [0, 0], sas(128, A5, 8), 1, -1),
            ([5], [], sas(), 0, -1),
            ([0, 3], [3], qli(), 1, -1),
        ]
    )


@pytest.mark.parametrize("policy", [0, 1])
def test_table_on_the_host(policy):
    """Numbers as launch arguments: no copy to the device, so that a graph can capture the call."""
    from dsacp.kernels.sas_plan.triton import launch_rows

    compare(
        [
            ([0, 4, 8], [900, 77], sas(128, A5, 8, ratio=128), policy, -1),
            ([0, 4, 8], [900, 77], sas(128, A5, 8, ratio=128), policy, 0),
            ([0, 1, 2, 3], [5, 0, 7000], qli(cores=2), policy, -1),
        ],
        launch_rows,
    )


@pytest.fixture
def npu_variant(monkeypatch):
    """Launch what an NPU would get: no path in int64."""
    from dsacp.kernels.sas_plan import triton

    chosen = triton.constants
    monkeypatch.setattr(triton, "constants", lambda _: chosen("npu"))


@pytest.mark.usefixtures("npu_variant")
@pytest.mark.parametrize("seed", range(100, 164 if GPU else 103))
def test_npu_variant_plans_the_same(seed):
    rng = random.Random(seed)
    compare([(*random_batch(rng), random_spec(rng), rng.randint(0, 1), -1) for _ in range(6)])


@pytest.mark.usefixtures("npu_variant")
@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("spec", [qli(cores=4), sas(128, A5, 8, ratio=4)], ids=["indexer", "pairs"])
def test_npu_variant_stays_legal_beyond_int32(spec, policy):
    """Every row once and enough work on every core; word 8 of pairs reaches the true count."""
    starts, lens = [0, 32768, 32769, 40000], [1000000, 9, 900000]
    words, guide = torch.full((2, PLAN_WORDS), POISON, dtype=torch.int32)
    plan = plan_table([(0, 0, 0, len(lens), *spec, policy, -1, 0, 0)])
    inputs = torch.tensor(starts).int(), torch.tensor(lens).int()
    sas_plan(*inputs, guide, plan, impl="reference")
    found = words.to(DEVICE)
    sas_plan(*(x.to(DEVICE) for x in inputs), found, plan.to(DEVICE), impl="triton")
    paired = spec[1] == 128
    size = 9 if paired else 8
    records = found[: 8 * size].view(8, size)[:: 2 if paired else 1][:4].tolist()
    cursor = [0, 0]
    for enabled, *start_end in (record[:7] for record in records):
        assert enabled == 1
        assert start_end[:3] == [*cursor, 0]
        assert cursor < start_end[3:5]
        cursor = start_end[3:5]
    assert cursor == [len(lens), 0]
    assert not paired or found[8].item() >= guide[8].item() > 0


@pytest.mark.skipif(not GPU, reason="no CUDA device: a graph cannot be captured")
def test_capture_with_a_table_on_the_host():
    starts, lens = (torch.tensor(v).int() for v in ([0, 4, 8], [900, 77]))
    rows = [(0, 0, 0, 2, *sas(), 0, -1, 0, 0)]
    out = torch.full((PLAN_WORDS,), POISON, dtype=torch.int32, device=DEVICE)
    inputs = starts.to(DEVICE), lens.to(DEVICE)
    sas_plan(*inputs, out, plan_table(rows))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sas_plan(*inputs, out, plan_table(rows))
    inputs[1].copy_(torch.tensor([5, 60000]))
    graph.replay()
    expected = torch.empty(PLAN_WORDS, dtype=torch.int32)
    sas_plan(starts, torch.tensor([5, 60000]).int(), expected, plan_table(rows))
    assert out.tolist() == expected.tolist()
