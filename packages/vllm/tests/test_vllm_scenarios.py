"""What the scenarios ask engines for, and what the demo says. Needs no vLLM."""

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from dsacp.vllm import demo, record
from dsacp.vllm.report import read_reports
from dsacp.vllm.scenario import Outcome, Scenario, engine_options, environment, make_prompts


def outcome(tokens: list[list[int]], **changes) -> Outcome:
    given = {
        "drafts": 0, "accepted": [], "cached_tokens": 0, "reports": [], "start_s": 1.0,
        "generate_s": 2.0, **changes,
    }  # fmt: skip
    return Outcome(tokens=tokens, **given)


REPORT = {
    "pid": 7,
    "runner": "V1",
    "layers": ["model.layers.4"],
    "calls": {"build[0]": 2, "build_for_drafting[1]": 3},
    "attention": {"sharded_forwards": 3, "all_to_alls": 6},
    "guarded": {"builds": 5, "addresses": 60, "padding_rows": 1},
    "violations": [],
}


def test_prompts_are_seeded_share_their_head_and_hold_no_special_ids() -> None:
    scenario = Scenario(prompts=(12, 3, 9), shared_prefix=8)
    long, short, other = (prompt["prompt_token_ids"] for prompt in make_prompts(scenario, 64))
    assert [len(long), len(short), len(other)] == [12, 3, 9]
    assert long[:8] == other[:8]
    assert min(long + short + other) >= 3
    assert make_prompts(scenario, 64) == make_prompts(scenario, 64)


def test_options_switch_drafting_and_the_plug_in() -> None:
    plain = engine_options(Scenario(options={"max_num_seqs": 2}), Path("model"))
    assert "speculative_config" not in plain
    assert plain["additional_config"] == {"enable_dsa_cp": False}
    assert plain["max_num_seqs"] == 2
    ours = engine_options(Scenario(draft_tokens=3, dsacp=True, tp=2), Path("model"))
    assert ours["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}
    assert ours["additional_config"] == {"enable_dsa_cp": True}
    assert ours["tensor_parallel_size"] == 2


def test_ranks_get_processes_and_cores_of_their_own() -> None:
    values = environment(Scenario(tp=2, v2=True, environment={"X": "1"}), Path("reports"))
    assert values["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert len(values["VLLM_CPU_OMP_THREADS_BIND"].split("|")) == 2
    assert values["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert values["X"] == "1"


def test_calls_and_violations_are_summed_over_instances() -> None:
    broken = {**REPORT, "violations": ["moved"]}
    both = outcome([[1]], reports=[REPORT, broken])
    assert both.calls() == {"build[0]": 4, "build_for_drafting[1]": 6}
    assert both.attention() == {"sharded_forwards": 6, "all_to_alls": 12}
    assert both.guarded() == {"builds": 10, "addresses": 120, "padding_rows": 2}
    assert both.violations == ["moved"]


def test_reports_are_read_from_every_process(tmp_path) -> None:
    for name in ("2-0", "1-0"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}))
    (tmp_path / "3-0.part").write_text("half a rep")
    assert [report["name"] for report in read_reports(tmp_path)] == ["1-0", "2-0"]


def test_the_demo_compares_three_engines_and_says_what_differs() -> None:
    options = demo._arguments(["--requests", "2", "--draft-tokens", "2", "--trace", "t.jsonl"])
    named = demo.scenarios(options)
    assert list(named) == ["no speculation", "MTP=2", "MTP=2 + DSA-CP"]
    assert [scenario.dsacp for scenario in named.values()] == [False, False, True]
    assert "DSACP_TRACE" in named["MTP=2 + DSA-CP"].environment
    plain = outcome([[1, 2], [3, 4]])
    drafted = outcome([[1, 2], [3, 5]], drafts=4, accepted=[3, 1], reports=[REPORT])
    line = demo.describe("MTP=2", drafted, plain)
    assert "tokens equal 1 of 2" in line
    assert " 75%   25% of 4 drafts" in line
    said = "\n".join(demo.explain(drafted))
    assert "build_for_drafting[1] x3" in said
    assert "0 violations" in said


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_the_demo_names_the_command(capsys) -> None:
    assert demo.main([]) == 2
    assert "nox -s serve_demo" in capsys.readouterr().out


def test_a_trace_is_refused_before_an_engine_starts(tmp_path, monkeypatch, capsys) -> None:
    """The demo served three engines, and the recorder then warned in a log that nobody saw."""
    monkeypatch.setattr(demo, "find_spec", lambda name: name)
    monkeypatch.setattr(demo, "run_forked", lambda _: pytest.fail("an engine started"))
    monkeypatch.setattr(record, "_run", lambda *_: pytest.fail("an engine started"))
    missing = str(tmp_path / "no" / "trace.jsonl")
    assert demo.main(["--trace", missing]) == 2
    assert record.main([missing]) == 2
    assert capsys.readouterr().err.count("found no folder") == 2


def test_a_recording_that_fails_keeps_what_was_there(tmp_path, monkeypatch, capsys) -> None:
    """An engine that ended early left half a trace in place of the old one, and status 0."""
    kept = tmp_path / "trace.jsonl"
    kept.write_text("before")
    monkeypatch.setattr(record, "_run", lambda *_: None)
    assert record.main([str(kept)]) == 1
    assert "found no request recorded" in capsys.readouterr().err
    monkeypatch.setattr(record, "_run", lambda _options, _folder, part: part.write_text("after"))
    assert kept.read_text() == "before"
    assert record.main([str(kept)]) == 0
    assert kept.read_text() == "after"


def test_the_demo_puts_its_trace_in_place_when_it_is_whole(tmp_path, monkeypatch, capsys) -> None:
    kept = tmp_path / "trace.jsonl"
    answers = outcome([[1]], drafts=1, accepted=[1], reports=[REPORT])

    def serve(scenario):
        assert not kept.exists()
        if path := scenario.environment.get("DSACP_TRACE"):
            Path(path).write_text("{}\n")
            assert not kept.exists(), "seen before it was whole"
        return answers

    monkeypatch.setattr(demo, "find_spec", lambda name: name)
    monkeypatch.setattr(demo, "run_forked", serve)
    assert demo.main(["--trace", str(kept), "--verbose"]) == 0
    assert kept.read_text() == "{}\n"
    assert f"dsacp replay --trace {kept}" in capsys.readouterr().out


def test_the_recorded_load_is_seeded_and_outgrows_the_window() -> None:
    load = record.seeded_load(24, 0, 0.4)
    assert load == record.seeded_load(24, 0, 0.4)
    assert load[0].at_s == 0
    assert max(request.input_length for request in load) > 64
    assert all(left.at_s <= right.at_s for left, right in pairwise(load))
