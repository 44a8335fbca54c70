"""The parts of the vllm-ascend plug-in that need no vllm-ascend."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dsacp.vllm.ascend import register_ascend
from dsacp.vllm.ascend.imports import when_imported
from dsacp.vllm.ascend.plans import HostLengths, PlanOwner
from dsacp.vllm.ascend.replay import replay_of
from dsacp.vllm.ascend.settings import group_blocker, switched_off
from dsacp.vllm.ascend.shapes import first_shape, later_shape, make_capacity


def common(**changes: Any) -> Any:
    values = {
        "num_reqs": 4,
        "num_input_tokens": 16,
        "num_actual_tokens": 12,
        "max_query_len": 4,
        "query_start_loc_cpu": torch.tensor([0, 4, 8, 12, 16]),
    }
    return SimpleNamespace(**{**values, **changes})


def test_first_step_counts_real_tokens_from_host_integers() -> None:
    shape = first_shape(common(num_actual_tokens=16), 3, 4, 1)
    assert (shape.rows, shape.real_reqs, shape.tokens, shape.real_tokens) == (4, 3, 16, 12)
    assert (shape.shard.start, shape.shard.end) == (4, 8)


def test_capture_of_a_later_step_has_the_rows_of_its_replay() -> None:
    """Upstream U30: 4 requests of 4 tokens at capture, 16 of one token at replay."""
    capture = later_shape(common(num_actual_tokens=16), 4, 0)
    replay = later_shape(common(num_reqs=16, max_query_len=1, num_actual_tokens=3), 4, 0)
    assert (capture.rows, capture.real_reqs) == (16, 0)
    assert (replay.rows, replay.real_reqs) == (16, 3)


def test_capacity_holds_what_the_host_captures_even_off_the_grid() -> None:
    """vllm-ascend #16168: max_num_seqs 6, a bucket of 16 tokens; and a host's size of 18."""
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=6, max_num_batched_tokens=32),
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 16, 18]),
    )
    capacity = make_capacity(config, 4)
    assert capacity.max_rows >= 18
    assert capacity.max_reqs >= 19


def test_host_lengths_know_their_maximum() -> None:
    lengths = torch.tensor([3, 9], dtype=torch.int32)
    stand_in: Any = HostLengths(lengths, 4096)
    assert stand_in.max().item() == 4096
    assert stand_in.clone() is lengths
    assert stand_in.shape == lengths.shape


def test_plan_owner_replaces_only_what_is_named() -> None:
    owner = PlanOwner(SimpleNamespace(kept=1, replaced=2), replaced=3)
    assert (owner.kept, owner.replaced) == (1, 3)


def test_no_op_is_added_only_where_it_is_missing() -> None:
    class Has:
        @staticmethod
        def update_graph_params() -> str:
            return "own"

    class Lacks:
        pass

    for impl in (Has, Lacks):
        replay_of(impl).serve()
    assert Has.update_graph_params() == "own"
    lacks: Any = Lacks
    assert lacks.update_graph_params("stream", 1, key=2) is None


def test_a_module_is_touched_after_the_host_imported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsacp_late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[ModuleType] = []
    when_imported("dsacp_late_module", seen.append)
    assert "dsacp_late_module" not in sys.modules
    assert seen == []
    module = __import__("dsacp_late_module")
    assert seen == [module]
    when_imported("dsacp_late_module", seen.append)
    assert seen == [module, module]


def test_settings() -> None:
    assert switched_off({"DSACP_ENABLE": "0"})
    assert not switched_off({})
    assert group_blocker(1, "mtp") is None
    assert group_blocker(2, "dspark") is None
    assert "2 draft attention groups" in str(group_blocker(2, "mtp"))


def test_registering_elsewhere_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert not register_ascend()
