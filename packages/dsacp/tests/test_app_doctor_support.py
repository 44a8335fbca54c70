"""The doctor refuses what the plug-in refuses: one list, read by both. Runs without vLLM."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from dsacp.app.cli import app

settings = pytest.importorskip("dsacp.vllm.settings", reason="the list is dsacp-vllm's")
steps = pytest.importorskip("dsacp.vllm.steps", reason="sizes are tried by dsacp-vllm")

V4 = {"model_type": "deepseek_v4", "compress_ratios": [0, 4, 128], "num_nextn_predict_layers": 1}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, ["a model without compress_ratios"]),
    "Llama": ({"model_type": "llama"}, ["a model of type 'llama' without compress_ratios"]),
    "ratios of 7": ({**V4, "compress_ratios": [1, 7, 4, 7]}, ["compress_ratios of 7 (known"]),
    "ratios that are none": ({**V4, "compress_ratios": []}, ["compress_ratios [], no list"]),
    "no draft layer": ({**V4, "num_nextn_predict_layers": 0}, ["num_nextn_predict_layers of 0"]),
    "GLM-5": (
        {"model_type": "glm_moe_dsa", "num_nextn_predict_layers": 0, "index_topk": 2048},
        ["of type 'glm_moe_dsa' without compress_ratios", "num_nextn_predict_layers of 0"],
    ),
    "DeepSeek-V3.2": (
        {"model_type": "deepseek_v32", "num_nextn_predict_layers": 1, "index_topk": 2048},
        ["of type 'deepseek_v32' without compress_ratios"],
    ),
}


def ask(tmp_path: Path, model: dict[str, Any] | None, *options: str) -> list[str]:
    """Return the doctor's problems with a model of this configuration."""
    arguments = ["doctor", "--no-hooks", "--max-num-seqs", "4", *options]
    if model is not None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(model))
        arguments += ["--model-config", str(path)]
    answer = CliRunner().invoke(app, arguments)
    found = [line.strip() for line in answer.output.splitlines() if "PROBLEM" in line]
    assert (answer.exit_code == 1) == bool(found), answer.output
    return [line for line in found if "dsacp would stand aside" in line]


def plug_in(model: dict[str, Any]) -> list[str]:
    """Return what the plug-in says of an engine that serves this model."""
    engine = SimpleNamespace(
        speculative_config=SimpleNamespace(method="mtp", num_speculative_tokens=3),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(**model)),
    )
    return [str(reason) for reason in settings.blockers(engine)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_the_plug_in_refuses_is_a_problem(tmp_path: Path, name: str) -> None:
    """The doctor gave "0 problems" for each of these; the plug-in took ratios of 7 too."""
    model, said = REFUSED[name]
    found = ask(tmp_path, model)
    assert len(found) == len(said)
    assert [line.split("stand aside: ")[1] for line in found] == plug_in(model)
    for line, part in zip(found, said, strict=True):
        assert part in line


def test_deepseek_v4_is_no_problem(tmp_path: Path) -> None:
    assert ask(tmp_path, V4, "--tp", "2") == plug_in(V4) == []
    assert ask(tmp_path, None) == []


def test_a_model_that_was_not_said_is_not_checked_in_silence() -> None:
    answer = CliRunner().invoke(app, ["doctor", "--no-hooks", "--max-num-seqs", "4"])
    assert "the model was not checked" in answer.output


SIZES = [(1, 4), (2, 4), (3, 4), (6, 4), (17, 8), (100, 8)]


@pytest.mark.parametrize(("max_num_seqs", "tp"), SIZES)
def test_sizes_are_tried_and_what_is_refused_is_a_problem(
    tmp_path: Path, max_num_seqs: int, tp: int
) -> None:
    """Draft steps of more than max_num_seqs + 1 - tp requests ended engines that it found sound."""
    sizes = steps.Sizes(max_num_seqs, 8192, 3, tp, 4096)
    reasons = list(map(str, steps.size_blockers(sizes)))
    found = ask(tmp_path, V4, "--max-num-seqs", str(max_num_seqs), "--tp", str(tp))
    assert [line.split("stand aside: ")[1] for line in found] == reasons


def test_a_size_that_our_buffers_refuse_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the builder refuses comes out, with the batch that it refused."""
    from dsacp.core import CapacityError
    from dsacp.drafting_cache import DraftMetadataBuilder

    def refuse(_self: Any, batch: Any, draft_index: int) -> None:
        if draft_index and batch.num_reqs == 6:
            raise CapacityError("needs 8 requests, buffer holds 7")

    monkeypatch.setattr(DraftMetadataBuilder, "build_for_drafting", refuse)
    (line,) = ask(tmp_path, V4, "--max-num-seqs", "6", "--tp", "4")
    assert "6 requests at length 4096 in step 1 on rank 0" in line
    assert "needs 8 requests, buffer holds 7" in line
