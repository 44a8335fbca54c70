"""An installed vLLM that has changed: silence and no harm where we are off, one line where not."""

import importlib.util
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention
from vllm.v1.attention.backends.mla import sparse_swa as swa
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.worker_base import WorkerBase

from dsacp.vllm import plugin
from dsacp.vllm.plugin import missing_hooks
from dsacp.vllm_cpu_kit import register as register_kit

Stock = swa.DeepseekSparseSWABackend.get_builder_cls()
Base = swa.DeepseekSparseSWAMetadataBuilder


@pytest.fixture
def fresh(monkeypatch, caplog):
    """A process in which the plug-in has not been loaded; what it logs is in ``caplog``."""
    register_kit()
    plugin.install.cache_clear()
    monkeypatch.setattr(plugin.logger, "propagate", True)
    monkeypatch.setattr(swa.DeepseekV4SWACache, "__init__", swa.DeepseekV4SWACache.__init__)
    monkeypatch.setattr(WorkerBase, "__init__", WorkerBase.__init__)
    monkeypatch.setattr(WorkerBase, "_dsacp_watched", False, raising=False)
    monkeypatch.setattr(Scheduler, "_dsacp_recorder", None, raising=False)
    caplog.set_level("WARNING", logger=plugin.logger.name)
    return caplog


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_installed_contract_has_every_hook() -> None:
    register_kit()
    assert missing_hooks() == []
    assert plugin.missing_operators() == []


def drafting(self, metadata) -> None: ...


def forward(self, q, positions, output) -> None: ...


def token_to_req(out, query_start_loc, num_mapped_tokens, num_tokens) -> None: ...


UPDATE, FLAG = "update_draft_decode_metadata", "supports_draft_decode_metadata_update"
CHANGES = {
    "signature": (Stock, "build_for_drafting", drafting, "without common_attn_metadata"),
    "no dataclass": (swa, "DeepseekSparseSWAMetadata", lambda: None, "is no dataclass"),
    "no kernel": (swa, "compute_token_to_req_indices", None, "no compute_token_to_req_indices"),
    "kernel order": (swa, "compute_token_to_req_indices", token_to_req, "not in the order"),
    "no window kernel": (swa, "_COMPUTE_SWA_INDICES_AND_LENS_KERNEL", None, "no _COMPUTE_SWA"),
    "attention": (DeepseekV4CPUAttention, "forward_mqa", forward, "without kv"),
    "no attention": (DeepseekV4CPUAttention, "process_weights_after_loading", None, "no CPU"),
    "stub": (Base, UPDATE, getattr(Base.__mro__[1], UPDATE), f"builder {UPDATE}"),
    "flag": (Base, FLAG, False, f"without {FLAG}"),
    "moved": (swa, "DeepseekSparseSWABackend", None, "cannot be checked"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_vllm_stops_us_and_is_named(name, fresh, monkeypatch) -> None:
    """Switched off, loading looks at nothing; asked for, one line says what was found."""
    owner, attribute, value, said = CHANGES[name]
    monkeypatch.setattr(owner, attribute, value)
    plugin.register()
    assert lines(fresh) == []
    run_worker(asked=False)
    assert lines(fresh) == []
    run_worker(asked=True)
    (line,) = lines(fresh)
    assert line.startswith("dsacp stands aside, the engine is unchanged: ")
    assert said in line


def test_a_vllm_without_the_window_cache_is_named_to_those_who_ask(fresh, monkeypatch) -> None:
    monkeypatch.delattr(swa, "DeepseekV4SWACache")
    plugin.register()
    run_worker(asked=False)
    assert lines(fresh) == []
    run_worker(asked=True)
    (line,) = lines(fresh)
    assert "no window metadata to build" in line


@pytest.mark.parametrize("lost", ["_free_request", "add_request"])
def test_a_scheduler_that_cannot_be_recorded_is_left_alone(lost, fresh, monkeypatch) -> None:
    monkeypatch.setenv("DSACP_TRACE", "trace.jsonl")
    monkeypatch.delattr(Scheduler, lost)
    before = dict(vars(Scheduler))
    plugin.register()
    (line,) = lines(fresh)
    assert line.startswith("dsacp records no trace")
    assert f"Scheduler {lost}" in line
    assert dict(vars(Scheduler)) == before


class Worker(WorkerBase):
    """vLLM's own constructor; loading makes the layers that ``layers`` names."""

    def __init__(self, config, layers=(), drafter=None, rank=0) -> None:
        super().__init__(config, 0, rank, "")
        self.layers, self.model_runner = layers, SimpleNamespace(drafter=drafter)

    def load_model(self, *, load_dummy_weights: bool = False) -> str:
        for layer in self.layers:
            plugin.adopt(layer, self.vllm_config, swa)
        return f"loaded, dummy {load_dummy_weights}"


def make_config(asked: bool, **changes):
    parts = [
        *("cache_config", "lora_config", "load_config", "parallel_config", "scheduler_config"),
        *("device_config", "observability_config", "kv_transfer_config"),
    ]
    ops = SimpleNamespace(set_default=lambda: None)
    values = {
        **{name: SimpleNamespace() for name in parts},
        "compilation_config": SimpleNamespace(ir_enable_torch_wrap=True),
        "kernel_config": SimpleNamespace(ir_op_priority=ops),
        "additional_config": {"enable_dsa_cp": asked},
        "speculative_config": SimpleNamespace(method="mtp", num_speculative_tokens=3),
        "model_config": SimpleNamespace(
            hf_config=SimpleNamespace(compress_ratios=[1, 4], num_hidden_layers=2)
        ),
    }
    return SimpleNamespace(**{**values, **changes})


def run_worker(asked: bool, layers=(), drafter=None, rank=0, **changes) -> None:
    worker = Worker(make_config(asked, **changes), layers, drafter, rank)
    assert worker.load_model(load_dummy_weights=True) == "loaded, dummy True"


def draft_layer():
    prefix = "model.layers.2.attn.swa_cache"
    return SimpleNamespace(prefix=prefix, backend_cls=swa.DeepseekSparseSWABackend)


LLAMA = SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=2))
ASIDE = {
    "plain Llama": ({"model_config": LLAMA, "speculative_config": None}, "no speculative_config"),
    "Llama, ngram": (
        {
            "model_config": LLAMA,
            "speculative_config": SimpleNamespace(method="ngram", num_speculative_tokens=2),
        },
        "speculative method 'ngram'",
    ),
    "another MTP model": ({"model_config": LLAMA}, "a model without compress_ratios"),
    "no window cache": ({}, "a model without a window cache in its draft layers"),
    "constant positions": (
        {"drafter": SimpleNamespace(constant_draft_positions=True), "layers": [draft_layer()]},
        "constant_draft_positions",
    ),
}


@pytest.mark.parametrize("name", ASIDE)
def test_an_engine_that_asks_and_is_not_served_hears_why_once(name, fresh) -> None:
    """Llama never makes a window cache: only a place that every engine passes can speak."""
    plugin.register()
    changes, said = ASIDE[name]
    run_worker(asked=True, rank=1, **changes)
    assert lines(fresh) == []
    run_worker(asked=True, **changes)
    (line,) = lines(fresh)
    assert line.startswith("dsacp stands aside, the engine is unchanged: ")
    assert said in line


def test_a_served_engine_hears_nothing_of_standing_aside(fresh) -> None:
    plugin.register()
    layer = draft_layer()
    run_worker(asked=True, layers=[layer])
    assert layer.backend_cls.get_name() == "DSACP_SPARSE_SWA"
    assert lines(fresh) == []


def test_registering_twice_wraps_once(fresh) -> None:
    plugin.register()
    wrapped = swa.DeepseekV4SWACache.__init__, WorkerBase.__init__
    plugin.register()
    assert (swa.DeepseekV4SWACache.__init__, WorkerBase.__init__) == wrapped
