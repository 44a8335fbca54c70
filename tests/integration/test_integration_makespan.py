"""The makespan study of ``benchmarks/`` on a few requests: its sums, and who is never worse."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def makespan(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import makespan

    yield makespan
    for name in ("makespan", "makespan_report"):
        sys.modules.pop(name)


def test_summary_counts_what_the_slowest_rank_saves(makespan):
    records = [
        makespan.Record(0, "decode", "target", "ratio 4", 100, 80, 300),
        makespan.Record(0, "decode", "target", "ratio 4", 90, 90, 300),
        makespan.Record(1, "mixed", "target", "ratio 4", 50, 50, 70),
        makespan.Record(1, "mixed", "target", "ratio 4", 0, 0, 0),
    ]
    rows = {row.kind: row for row in makespan.summarise(records)}
    assert [rows[kind].calls for kind in ("decode", "mixed", "all")] == [2, 1, 3]
    assert rows["decode"].saved == pytest.approx(0.1)
    assert rows["all"].saved == pytest.approx(10 / 150)
    assert rows["all"].shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert rows["all"].percentiles[0] == pytest.approx(0.8)


def test_balanced_is_never_worse_on_the_packaged_trace(makespan):
    from dsacp.app.replay.settings import ReplayConfig
    from dsacp.app.traces.read import load_trace

    config = ReplayConfig(drafter="none", tp=2)
    records = makespan.study(config, load_trace(None, 3))
    assert {record.role for record in records} == {"target", "draft 0", "draft 1", "draft 2"}
    assert {record.label for record in records} == {"ratio 1", "ratio 4", "ratio 128", "indexer"}
    for record in records:
        assert record.total // 24 <= record.balanced <= record.upstream
