"""Exact tokens of a seeded run: eager, by graph, and at every tensor-parallel size."""

import json
import os
from functools import cache
from pathlib import Path

import pytest
import torch

from dsacp.app.engine import Engine, EngineRun, Mode
from dsacp.app.replay.settings import ReplayConfig
from dsacp.app.traces.read import TraceRequest

GOLDEN = Path(__file__).with_name("golden_tokens.json")
LEAST_MARGIN = 1e-9
TRACE = (
    TraceRequest(0.0, 37, 21),
    TraceRequest(0.0, 5, 30),
    TraceRequest(0.0, 150, 18),
    TraceRequest(400.0, 12, 26),
    TraceRequest(420.0, 64, 3),
    TraceRequest(900.0, 9, 24),
)
"""Requests join and leave; one prompt fills a group of 128 tokens and is cut into chunks."""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def serve(tp: int, draft_tokens: int, mode: Mode, requests: int = len(TRACE)) -> EngineRun:
    config = ReplayConfig(
        tp=tp,
        draft_tokens=draft_tokens,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        # Larger than max_num_seqs: 32 tokens are 8 requests of K+1 = 4.
        capture_sizes=(8, 16, 32),
    )
    return Engine(config, TRACE[:requests], mode).run()


def shown(run: EngineRun) -> dict[str, object]:
    return {
        "tokens": {str(request): list(ids) for request, ids in sorted(run.tokens.items())},
        "drafts": {str(request): rows for request, rows in sorted(run.drafts.items())},
        "proposed": [run.proposed[at] for at in sorted(run.proposed)],
        "accepted": [run.accepted[at] for at in sorted(run.proposed)],
    }


def test_golden_tokens_at_tp_4_with_three_drafts():
    """The exact ids; ``DSACP_WRITE_GOLDEN=1`` writes them again after a change of the model."""
    run = serve(4, 3, "eager")
    if os.environ.get("DSACP_WRITE_GOLDEN") == "1":
        lines = [f'"{key}": {json.dumps(value)}' for key, value in shown(run).items()]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert shown(run) == json.loads(GOLDEN.read_text())
    assert sorted(run.proposed) == [1, 2, 3]
    assert all(run.accepted[at] > 0 for at in (1, 2, 3)), "no draft accepted at some position"
    assert run.smallest_margin > LEAST_MARGIN


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_golden_tokens_hold_for_every_tp_eager_and_graph(tp: int, mode: Mode):
    run = serve(tp, 3, mode)
    assert shown(run) == json.loads(GOLDEN.read_text())
    assert run.smallest_margin > LEAST_MARGIN
    assert all(run.accepted[at] > 0 for at in (1, 2, 3)), "no draft accepted at some position"
    assert set(run.buckets) - {0}, "no step used a captured bucket"


@pytest.mark.parametrize("tp", [1, 2, 3, 8])
@pytest.mark.parametrize("draft_tokens", [1, 5])
def test_eager_graph_and_unsharded_streams_are_equal(tp: int, draft_tokens: int):
    unsharded = serve(1, draft_tokens, "eager", 4)
    graph, eager = (serve(tp, draft_tokens, mode, 4) for mode in ("graph", "eager"))
    assert shown(graph) == shown(eager) == shown(unsharded)
    assert len(graph.accepted) == draft_tokens
    assert all(graph.accepted[at] > 0 for at in range(1, draft_tokens + 1))
    assert graph.smallest_margin > LEAST_MARGIN


@pytest.mark.parametrize("draft_tokens", [1, 5])
def test_drafts_never_change_what_is_sampled(draft_tokens: int):
    """Verification is lossless: fewer or more drafts only end a text at another step."""
    golden = serve(1, 3, "eager").tokens
    other = serve(1, draft_tokens, "eager", 4).tokens
    for request, ids in other.items():
        shared = min(len(ids), len(golden[request]))
        assert ids[:shared] == golden[request][:shared]


@pytest.mark.parametrize("concurrent", [3, 4])
@pytest.mark.parametrize("layout", ["tokens", "requests"])
def test_buckets_larger_than_max_num_seqs_do_not_crash(concurrent: int, layout: str):
    """vllm-ascend's revert: 16 captured tokens were 16 rows in buffers of 7 (K 3, 6 requests)."""
    trace = [TraceRequest(0.0, 3 + 5 * index, 20) for index in range(concurrent)]
    runs = {}
    for mode in ("eager", "graph"):
        config = ReplayConfig(
            tp=4, draft_tokens=3, max_num_seqs=6, capture_sizes=(4, 8, 16), layout=layout
        )
        engine = Engine(config, trace, mode)
        runs[mode] = engine.run()
        assert engine.setup.capacity.max_reqs == 17
        engine.guard.check()
    assert shown(runs["graph"]) == shown(runs["eager"])
    assert runs["graph"].buckets[16] > 0
    assert runs["graph"].smallest_margin > LEAST_MARGIN
