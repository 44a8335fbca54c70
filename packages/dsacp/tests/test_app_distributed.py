import json
import os
import subprocess
import sys

import pytest
import torch

from dsacp.app.model.join import join_simulated
from dsacp.app.replay import distributed
from dsacp.app.replay.session import run_replay
from dsacp.app.replay.settings import ReplayConfig
from dsacp.app.traces.read import TraceRequest, dump_trace

TRACE = (TraceRequest(0.0, 9, 6), TraceRequest(10.0, 5, 8), TraceRequest(60.0, 13, 5))
LIMITS = {"max_num_seqs": 3, "max_num_batched_tokens": 16}
SIZES = (4, 8)


def torchrun(tmp_path, *options):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(dump_trace(TRACE), encoding="utf-8")
    limits = [f"--{name.replace('_', '-')}={value}" for name, value in LIMITS.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "-m", "dsacp.app", "replay", f"--trace={trace}"]
    sizes = ",".join(map(str, SIZES))
    return subprocess.run(
        [*command, f"--capture-sizes={sizes}", *limits, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_find_what_two_simulated_ranks_find(tmp_path):
    report = tmp_path / "report.json"
    done = torchrun(tmp_path, "--tp=2", f"--json={report}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("engine steps") == 1
    spread = json.loads(report.read_text(encoding="utf-8"))
    config = ReplayConfig(tp=2, capture_sizes=SIZES, **LIMITS)
    alone = run_replay(config, TRACE, lambda *_: None).as_json()
    assert any(int(size) for size in spread["buckets"])
    assert spread["findings"]["fields_compared"] == alone["findings"]["fields_compared"]
    assert tuple(spread["ranks"]) == alone["ranks"]
    for field in ("ok", "steps", "output_tokens", "buckets", "accepted", "smallest_margin"):
        assert spread[field] == alone[field], field


def test_as_many_processes_as_ranks(tmp_path):
    done = torchrun(tmp_path, "--tp=4")
    assert done.returncode != 0
    assert "one process for each of --tp 4 ranks, found 2" in done.stderr


def test_a_process_alone_is_not_launched():
    assert not distributed.launched()
    assert distributed.is_first()
    distributed.enter_processes(ReplayConfig(tp=2))
    distributed.leave_processes()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("rows", [(3, 3), (1, 1, 1)])
def test_simulated_ranks_are_concatenated(rows):
    parts = [torch.full((count, 2), float(rank)) for rank, count in enumerate(rows)]
    joined = join_simulated(parts)
    assert joined[:, 0].tolist() == [float(r) for r, n in enumerate(rows) for _ in range(n)]
