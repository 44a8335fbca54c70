"""``dsacp doctor``: what it finds, what it warns of, its exit code. Runs without vLLM."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsacp.app.cli import app
from dsacp.app.doctor import exit_code
from dsacp.app.doctor import machine as doctor_host
from dsacp.app.doctor.machine import Finding, hook_findings, host_findings
from dsacp.app.doctor.memory import ascend_bytes, builder_bytes
from dsacp.app.doctor.serving import Serving, bounds, serving_findings
from dsacp.core import TokenShard
from dsacp.drafting_cache import DraftMetadataBuilder, GroupSpec
from dsacp.rope_proxy import RopeConfig, RopeRegistry
from dsacp.sas_metadata import SasSpec

MODEL = {"qk_rope_head_dim": 64}


def serving(**changes: Any) -> Serving:
    values: dict[str, Any] = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "draft_tokens": 3,
        "tp": 4,
        "capture_sizes": (8, 16, 24),
        "max_model_len": 4096,
        "draft_eager": False,
        "model": None,
    }
    return Serving(**{**values, **changes})


def texts(found: list[Finding], level: str) -> str:
    return "\n".join(finding.text for finding in found if finding.level == level)


def test_a_sound_configuration_has_nothing_to_change() -> None:
    found = serving_findings(serving())
    assert texts(found, "problem") == texts(found, "warning") == ""
    assert "25 requests and 64 tokens" in texts(found, "ok")


def test_the_concurrency_case_says_what_upstream_would_do() -> None:
    """vllm-ascend #16168: 16 one-token requests although max_num_seqs is 6."""
    found = serving_findings(serving(capture_sizes=(16,)))
    assert "16 one-token requests while max_num_seqs is 6" in texts(found, "note")
    assert "holds 4 requests" in texts(found, "warning")


def test_off_grid_sizes_are_named_with_their_cause() -> None:
    """vllm-ascend #3910 (40 is no multiple of K+1=3) and #2719 (sizes and tp)."""
    found = serving_findings(
        serving(max_num_seqs=14, draft_tokens=2, tp=2, capture_sizes=(24, 40, 45, 48))
    )
    warnings = texts(found, "warning")
    assert "capture size 40 is no multiple of K+1=3" in warnings
    assert "capture size 45 is no multiple of tp=2" in warnings
    assert "capture size 24" not in warnings


def test_no_size_left_is_a_problem() -> None:
    assert "every draft step runs eager" in texts(
        serving_findings(serving(capture_sizes=(2, 5))), "problem"
    )


def test_eager_drafts_and_small_budgets_are_warned_of() -> None:
    """The way around of the shipped recipes, and vLLM #32591."""
    found = serving_findings(serving(draft_eager=True, max_num_batched_tokens=20))
    assert "enforce_eager" in texts(found, "warning")
    assert "6 requests verify 24 tokens" in texts(found, "warning")


def test_a_rope_table_shorter_than_the_context_is_a_problem() -> None:
    """vLLM #57941."""
    model = {"rope_scaling": {"original_max_position_embeddings": 1024, "factor": 2}}
    found = serving_findings(serving(model=model))
    assert "exceeds the 2048 rows" in texts(found, "problem")


def test_flashcomm_is_asked_for_on_ascend_only() -> None:
    packages = {"vllm-ascend": "0.26.0rc1", "torch-npu": "2.10.0", "torch": "2.10.0"}
    assert "FLASHCOMM1" in texts(host_findings(packages, {}), "problem")
    assert texts(host_findings(packages, {doctor_host.FLASHCOMM: "1"}), "problem") == ""
    assert texts(host_findings({}, {}), "problem") == ""


@pytest.mark.parametrize("changes", [
    {}, {"tp": 3, "draft_tokens": 5, "max_num_seqs": 40}, {"model": {"compress_rope_theta": 16e4}},
])  # fmt: skip
def test_memory_of_our_builder_is_what_it_allocates(changes: dict[str, Any]) -> None:
    config = serving(**changes)
    capacity = bounds(config, config.usable)
    rope = RopeRegistry()
    for index in range(2 if config.model else 1):
        rope.register(f"layer.{index}", RopeConfig(64, 4096, 1e4 + index))
    builder = DraftMetadataBuilder(
        capacity,
        [GroupSpec("window", 128, sas=SasSpec(num_heads=64))],
        rope,
        TokenShard(0, config.tp, 0),
        max_model_len=4096,
    )
    held = {storage.untyped_storage().data_ptr(): storage for storage in builder.storages()}
    bytes_held = sum(storage.untyped_storage().nbytes() for storage in held.values())
    assert builder_bytes(capacity, config.model) == bytes_held > 0


def test_memory_says_what_it_leaves_out() -> None:
    pytest.importorskip("dsacp.vllm", reason="vllm-ascend's buffers are counted by dsacp-vllm")
    found = {
        "block tables (--max-model-len)": serving(max_model_len=None, model=MODEL),
        "captured batches (--capture-sizes)": serving(capture_sizes=(), model=MODEL),
        "further RoPE configurations (--model-config)": serving(),
    }
    for left, config in found.items():
        assert f"not counted: {left}\n" in texts(serving_findings(config), "ok")
    assert "not counted" not in texts(serving_findings(serving(model=MODEL)), "ok")


def test_memory_follows_what_is_said() -> None:
    """DSpark's indices, the window and the device's slot format change the bytes."""
    pytest.importorskip("dsacp.vllm", reason="vllm-ascend's buffers are counted by dsacp-vllm")
    capacity = bounds(serving(), (8, 16, 24))
    plain = ascend_bytes(capacity, {}, 4096)
    assert ascend_bytes(capacity, {}, 4096, slot_width=1)[1] < plain[1]
    block = ascend_bytes(capacity, {}, 4096, dspark=True)
    wide = ascend_bytes(capacity, {"sliding_window": 512}, 4096, dspark=True)
    # one index a token of the block for every slot of the window; rounded up to whole columns
    assert wide[0] - block[0] == 4 * capacity.max_tokens * 384
    assert block[1] == plain[1]


def test_what_the_page_prints_is_what_the_command_prints() -> None:
    """docs/on-ascend.md shows the concurrency case; its lines are the command's own."""
    pytest.importorskip("dsacp.vllm", reason="vllm-ascend's buffers are counted by dsacp-vllm")
    page = (Path(__file__).parents[3] / "docs" / "on-ascend.md").read_text()
    shown = page.split("```text\nserving\n")[1].split("```")[0].splitlines()
    options = "--max-num-seqs 6 --max-num-batched-tokens 64 --capture-sizes 16 --tp 4"
    arguments = ["doctor", "--no-hooks", *options.split(), "--draft-tokens", "3"]
    answer = CliRunner().invoke(app, [*arguments, "--max-model-len", "4096"])
    printed = answer.output.split("serving\n")[1].splitlines()
    assert shown[:-1] == printed[:-1], answer.output


@pytest.mark.parametrize(("on_ascend", "level"), [(True, "problem"), (False, "warning")])
def test_more_drafts_than_upstream_takes(on_ascend: bool, level: str) -> None:
    config = serving(draft_tokens=20, capture_sizes=(84,), max_num_batched_tokens=256)
    assert "asserts at most 16" in texts(serving_findings(config, on_ascend), level)
    fine = serving(draft_tokens=15, capture_sizes=(96,), max_num_batched_tokens=256)
    assert "asserts at most" not in texts(serving_findings(fine, on_ascend), level)


def test_a_capture_beyond_a_step_is_a_problem() -> None:
    found = serving_findings(serving(capture_sizes=(9999999,)))
    assert "capture size 9999999 is beyond what a step can have" in texts(found, "problem")


@pytest.mark.parametrize("scaling", [
    {"factor": None, "original_max_position_embeddings": 4096},
    {"factor": 2, "original_max_position_embeddings": None},
])  # fmt: skip
def test_a_null_in_the_rope_settings_is_nothing_said(scaling: dict[str, Any]) -> None:
    model = {"rope_scaling": scaling, "max_position_embeddings": 4096}
    found = serving_findings(serving(model=model, max_model_len=8192))
    assert "max_model_len 8192 exceeds the 4096 rows" in texts(found, "problem")


@pytest.mark.parametrize("value", ["false", "true", "yes"])
def test_flashcomm_is_read_as_upstream_reads_it(value: str) -> None:
    packages = {"vllm-ascend": "0.26.0rc1", "torch-npu": "2.10.0"}
    assert f"={value!r}" in texts(
        host_findings(packages, {doctor_host.FLASHCOMM: value}), "problem"
    )


def test_flashcomm_is_no_problem_of_the_host_alone() -> None:
    packages = {"vllm-ascend": "0.26.0rc1", "torch-npu": "2.10.0"}
    found = host_findings(packages, {doctor_host.FLASHCOMM: "0"}, serving=False)
    assert "FLASHCOMM1 is not 1" in texts(found, "warning")
    assert texts(found, "problem") == ""


def test_hooks_that_cannot_be_checked_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_host.sys, "executable", "false")
    if importlib.util.find_spec("dsacp.vllm") is None:
        pytest.skip("dsacp-vllm is not installed: there is nothing to probe")
    assert "hooks not checked" in texts(hook_findings({"vllm-ascend": "0.26.0rc1"}), "problem")


@pytest.mark.parametrize(("level", "strict", "code"), [
    ("problem", False, 1), ("warning", False, 0), ("warning", True, 1), ("note", True, 0),
])  # fmt: skip
def test_exit_code(level: Any, strict: bool, code: int) -> None:
    assert exit_code({"host": [Finding(level, "x")]}, strict) == code


def test_command_reads_a_model_and_exits_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    options = ["doctor", "--no-hooks", "--max-num-seqs", "6", "--max-model-len", "4096"]
    answer = CliRunner().invoke(app, [*options, "--model-config", str(tmp_path)])
    assert answer.exit_code == 1
    assert "PROBLEM max_model_len 4096 exceeds the 512 rows" in answer.output
    missing = CliRunner().invoke(app, [*options, "--model-config", str(tmp_path / "none")])
    assert missing.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs >= 1 as a whole number, found 0"),
        (["--max-num-seqs", "4", "--tp", "0", "--capture-sizes", "4"], "--tp in 1..64"),
        (["--max-num-seqs", "4", "--tp", "65"], "--tp in 1..64 as a whole number, found 65"),
        (["--max-num-seqs", "4", "--draft-tokens", "1000000"], "--draft-tokens in 1..64"),
        (["--max-num-seqs", "4", "--capture-sizes", "0"], "--capture-sizes >= 1"),
        (["--max-num-seqs", "4", "--capture-sizes", "8,x"], "numbers with commas, found 'x'"),
        (["--model-config", "/dev/zero"], "expected a regular file"),
        (["--max-model-len", "4096"], "--max-num-seqs beside --max-model-len, found none"),
        (["--capture-sizes", "8", "--dspark"], "beside --capture-sizes, --dspark"),
        (["--max-num-seqs", "4", "--device", "a9"], "--device as one of a2, a5, found 'a9'"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--no-hooks", *arguments])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "maximum recursion depth"),
        ('{"qk_rope_head_dim": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ('{"qk_rope_head_dim": "x"}', "qk_rope_head_dim in"),
        ('{"max_position_embeddings": 1e3}', "max_position_embeddings in"),
        ('{"rope_scaling": "x"}', "rope_scaling, found str"),
        ('{"rope_scaling": {"factor": 1e999}}', "factor in"),
        ("[1]", "expected a JSON object"),
    ],
)
def test_a_model_config_of_the_wrong_kind_exits_with_2(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    result = CliRunner().invoke(app, ["doctor", "--no-hooks", "--model-config", str(path)])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line
    assert len(line) < 400
