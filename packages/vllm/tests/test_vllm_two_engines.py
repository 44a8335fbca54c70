"""Two engines in one process: neither hears, nor suffers from, what the other met."""

import copy
import importlib.util
import json
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from dsacp.vllm import plugin
from dsacp.vllm.aside import Engine, engine_of, new_engine
from dsacp.vllm.recorder import SafeRecorder, wrap_scheduler
from dsacp.vllm.settings import Blocker


def config(**changes: Any) -> SimpleNamespace:
    values = {
        "additional_config": {"enable_dsa_cp": True},
        "compilation_config": SimpleNamespace(),
        "parallel_config": SimpleNamespace(),
        "speculative_config": SimpleNamespace(method="mtp", num_speculative_tokens=3),
        "model_config": SimpleNamespace(
            hf_config=SimpleNamespace(compress_ratios=[1, 4], num_hidden_layers=2)
        ),
    }
    return SimpleNamespace(**{**values, **changes})


def load(vllm_config: Any, layers: list[Any], **runner: Any) -> None:
    """Load a model as a worker of an engine does: its layers are made, and adopted or not."""
    swa = layers[0].swa if layers else None
    worker = SimpleNamespace(vllm_config=vllm_config, model_runner=SimpleNamespace(**runner))

    def load_model() -> None:
        for layer in layers:
            plugin.adopt(layer, vllm_config, swa)

    plugin.around_load(worker, load_model)()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(plugin.logger, "propagate", True)
    caplog.set_level(logging.WARNING, logger=plugin.logger.name)
    return caplog


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: nox -s vllm")
def test_an_engine_is_served_after_one_that_was_not(said) -> None:
    """After an engine with constant_draft_positions, a good configuration was refused too."""
    from vllm.v1.attention.backends.mla import sparse_swa as swa

    from dsacp.vllm_cpu_kit import register as register_kit

    register_kit()

    def layer() -> SimpleNamespace:
        prefix = "model.layers.2.attn.swa_cache"
        return SimpleNamespace(prefix=prefix, backend_cls=swa.DeepseekSparseSWABackend, swa=swa)

    refused, good = layer(), layer()
    load(config(), [refused], drafter=SimpleNamespace(constant_draft_positions=True))
    assert refused.backend_cls is swa.DeepseekSparseSWABackend
    assert len(lines(said)) == 1
    load(config(), [good], drafter=SimpleNamespace(constant_draft_positions=False))
    assert good.backend_cls.get_name() == "DSACP_SPARSE_SWA"
    assert len(lines(said)) == 1


def test_every_engine_hears_why_it_is_not_served(said) -> None:
    """A line was said once a process: the second engine was left alone in silence."""
    for _ in range(2):
        load(config(speculative_config=None), [])
    one, two = lines(said)
    assert one == two
    assert "no speculative_config" in one


def test_the_same_configuration_object_starts_a_new_engine(said) -> None:
    again = config(speculative_config=None)
    load(again, [])
    load(again, [])
    assert len(lines(said)) == 2


def test_a_drafters_copy_of_the_configuration_is_the_same_engine() -> None:
    """vLLM replaces parts of a configuration for its drafter; layers register in one place."""
    target = config()
    drafter = SimpleNamespace(**{**vars(target), "model_config": None})
    assert engine_of(drafter) is engine_of(target)
    assert engine_of(config()) is not engine_of(target)
    kept = engine_of(target)
    assert new_engine(target) is not kept


def test_a_configuration_goes_to_another_process_without_our_state() -> None:
    engine = engine_of(sent := config())
    engine.refused.append(Blocker("a", "b"))
    engine.warn_once("said", quiet=True)
    for arrived in (pickle.loads(pickle.dumps(sent)), copy.deepcopy(sent)):
        assert vars(engine_of(arrived)) == vars(Engine())


class Scheduler:
    """What the recorder wraps of vLLM's scheduler."""

    def add_request(self, request: Any) -> None: ...

    def _free_request(self, request: Any) -> None: ...


def test_an_engines_trace_waits_for_no_request_of_another(tmp_path) -> None:
    """A request that an ended engine left unanswered held back every line of the next one."""
    scheduler_cls = type("Wrapped", (Scheduler,), {})
    wrap_scheduler(scheduler_cls, SafeRecorder(str(tmp_path / "trace.jsonl"), pytest.fail))
    request = SimpleNamespace(request_id="a", num_prompt_tokens=5, num_output_tokens=7)
    ended, later = scheduler_cls(), scheduler_cls()
    ended.add_request(SimpleNamespace(request_id="left", num_prompt_tokens=5))
    later.add_request(request)
    later._free_request(request)
    (line,) = (tmp_path / "trace.2.jsonl").read_text().splitlines()
    assert json.loads(line)["output_length"] == 7
    assert (tmp_path / "trace.jsonl").read_text() == ""
