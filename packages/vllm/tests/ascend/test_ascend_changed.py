"""A changed upstream: one line and upstream's builder, never a crash and never silence."""

import dataclasses
import importlib
import logging
import random
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, common_metadata
from ascend_double.runner_v2 import build_target, modules
from ascend_double.scenario import concurrency, host, run, stock

from dsacp.vllm.ascend import hooks, plugin
from dsacp.vllm.ascend.plugin import choose, refuse_groups
from dsacp.vllm.ascend.runner_v2 import claim_drafts


@pytest.fixture
def later() -> Any:
    """Return a builder class that nobody has chosen yet, as a later version would bring it."""
    return type("AscendDSACPMetadataBuilder", (stock(),), {"__module__": plugin.BUILDER_MODULE})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.dsacp"]


def rope_module_renamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plugin, "ROPE_MODULE", "vllm_ascend.ops.rope_dsv5")


def request_metadata_no_dataclass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(install().dsa_cp, "AscendDSAReqMetadata", type("AscendDSAReqMetadata", (), {}))


def slot_format_with_a_parameter(patch: pytest.MonkeyPatch) -> None:
    device = install().dsa_cp.DeviceOperator

    def changed(slot_mapping: Any, block_size: int, interleaved: bool = False) -> None:
        """Stands for a later version's format."""

    patch.setattr(device, "format_dsa_slot_mapping", staticmethod(changed))


def rope_lookup_with_a_parameter(patch: pytest.MonkeyPatch) -> None:
    def changed(group_name: str, device: Any) -> None:
        """Stands for a later version's lookup."""

    patch.setattr(install().dsa_cp, "get_full_cos_and_sin_dsa", changed)


def proposer_advance_renamed(patch: pytest.MonkeyPatch) -> None:
    (cls,) = (
        value
        for value in vars(install().proposer).values()
        if isinstance(value, type) and hooks.ADVANCE in vars(value)
    )
    patch.delattr(cls, hooks.ADVANCE)


def speculator_hand_over_renamed(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(modules().speculator.AscendAutoRegressiveSpeculator, hooks.HAND_OVER)


def attention_group_renamed(patch: pytest.MonkeyPatch) -> None:
    group = dataclasses.make_dataclass("AttentionGroup", ["builders"])
    patch.setattr(modules().speculator, "AttentionGroup", group)


CHANGES = {
    rope_module_renamed: "rope_dsv5",
    request_metadata_no_dataclass: "dataclass",
    slot_format_with_a_parameter: "format_dsa_slot_mapping(slot_mapping, block_size, interleaved)",
    rope_lookup_with_a_parameter: "get_full_cos_and_sin_dsa(group_name, device)",
    proposer_advance_renamed: f"no class with {hooks.ADVANCE}",
    speculator_hand_over_renamed: f"no class with {hooks.HAND_OVER}",
    attention_group_renamed: "AttentionGroup without metadata_builders",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_one_line_and_upstreams_builder(
    change: Any, later: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(install().dsa_cp, "AscendDSACPMetadataBuilder", later)
    change(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(later) is later
        assert choose(later) is later
    (line,) = lines(caplog)
    assert "dsacp stands aside" in line
    assert CHANGES[change] in line


def test_a_builder_that_sets_other_attributes(
    later: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Named in ``__init__`` or not at all: seen before a builder is made."""
    names = [name for name in stock().__init__.__code__.co_names if name != "slot_mapping_shape"]
    source = ", ".join(f"self.{name}" for name in names)
    parameters = "self, kv_cache_spec, layer_names, vllm_config, device"
    later.__init__ = eval(f"lambda {parameters}: ({source})")
    monkeypatch.setattr(install().dsa_cp, "AscendDSACPMetadataBuilder", later)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(later) is later
    (line,) = lines(caplog)
    assert "never sets slot_mapping_shape" in line


@pytest.mark.parametrize("name", ["build_req_metadata", "build_req_metadata_for_drafting"])
def test_a_body_that_sets_a_field_more(
    name: str, later: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Same signature, a known field: but one that upstream has left alone so far."""
    code = getattr(stock(), name).__code__
    consts = (*code.co_consts, "reshape_cache_event")
    setattr(later, name, FunctionType(code.replace(co_consts=consts), {}))
    monkeypatch.setattr(install().dsa_cp, "AscendDSACPMetadataBuilder", later)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(later) is later
    (line,) = lines(caplog)
    assert f"{name} that reads reshape_cache_event" in line


def test_a_builder_that_cannot_be_prepared_runs_as_upstreams(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    double, cls = HostDouble(3, 2, 0, max_num_seqs=64, max_num_batched_tokens=64), choose(stock())
    monkeypatch.setattr(cls, "_prepare", lambda self: self.slot_mapping_form)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        builder = double.builder(cls)
    (line,) = lines(caplog)
    assert "slot_mapping_form" in line
    assert len(run(builder, double, concurrency())) == 3


@pytest.mark.parametrize("place", [plugin.BACKEND_MODULE, "vllm_ascend.attention.dsa_cp_v2"])
def test_a_moved_builder_is_named(place: str, caplog: pytest.LogCaptureFixture) -> None:
    moved = type("AscendDSACPMetadataBuilder", (), {"__module__": place})
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(moved) is moved
    (line,) = lines(caplog)
    assert f"AscendDSACPMetadataBuilder of {place}" in line


def test_a_backend_without_dsa_cp_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        plain = install().dsa_v1.AscendDSAMetadataBuilder
        assert choose(plain) is plain
    assert lines(caplog) == []


def test_missing_modules_are_named_at_once(tmp_path: Path) -> None:
    """A hook that waits for a module which never comes would wait in silence."""
    spec = ModuleSpec("vllm_ascend", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    for name in (plugin.BACKEND_MODULE, plugin.ROPE_MODULE, plugin.PROPOSER_MODULE):
        path = tmp_path.joinpath(*name.split(".")[1:]).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (moved,) = plugin.moved_modules(spec)
    assert plugin.BUILDER_MODULE in str(moved)
    real = importlib.import_module("vllm_ascend").__spec__
    assert real is not None
    assert list(plugin.moved_modules(real)) == []


PROPOSERS = {
    "no groups": lambda _builder: SimpleNamespace(method="mtp"),
    "no builders": lambda builder: SimpleNamespace(
        draft_attn_groups=[SimpleNamespace(builders=[builder])], method="mtp"
    ),
    "no method": lambda builder: SimpleNamespace(
        draft_attn_groups=[SimpleNamespace(metadata_builders=[builder])]
    ),
}


@pytest.mark.parametrize("kind", PROPOSERS)
def test_an_unknown_proposer_gets_upstreams_draft_steps(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Groups that nobody could count may be two, which upstream's proposer advances wrongly."""
    double = host()
    builder = double.builder(choose(stock()), held=False)
    refuse_groups(PROPOSERS[kind](builder))
    common = common_metadata(concurrency(), double, random.Random(0))
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        builder.build_for_drafting(common, 1, block_size=BLOCK)
    (line,) = lines(caplog)
    assert "draft steps from a proposer or speculator" in line
    assert builder.dsacp_refused is not None


@pytest.mark.parametrize("lost", ["target_attn_groups", "attn_groups", "metadata_builders"])
def test_an_unknown_speculator_gets_upstreams_steps(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    double = HostDouble(4, 4, 0, max_num_seqs=16, max_num_batched_tokens=64)
    target, drafts = (double.builder(choose(stock()), held=False) for _ in range(2))
    own = SimpleNamespace(
        attn_groups=[[SimpleNamespace(metadata_builders=[drafts])]],
        target_attn_groups=[[SimpleNamespace(metadata_builders=[target])]],
    )
    for owner in (own, *own.attn_groups[0]):
        if hasattr(owner, lost):
            delattr(owner, lost)
    claim_drafts(own)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"), pytest.raises(AssertionError):
        build_target(drafts, common_metadata(concurrency(), double, random.Random(1)))
    (line,) = lines(caplog)
    assert "a step of runner v2 from a proposer or speculator" in line


def test_a_known_speculator_marks_both_builders() -> None:
    double = HostDouble(4, 4, 0, max_num_seqs=16, max_num_batched_tokens=64)
    target, drafts = (double.builder(choose(stock()), held=False) for _ in range(2))
    pair = [[[SimpleNamespace(metadata_builders=[builder])]] for builder in (drafts, target)]
    claim_drafts(SimpleNamespace(attn_groups=pair[0], target_attn_groups=pair[1]))
    assert (drafts.dsacp_seen, target.dsacp_seen) == (True, True)
    assert (drafts.dsacp_drafts, target.dsacp_drafts) == (True, False)


@pytest.mark.parametrize(("device", "host"), [("npu", True), ("cpu", False), ("cuda", False)])
def test_another_platform_is_served_as_plain_vllm(
    device: str, host: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vllm-ascend is merely installed: the plug-in of vLLM goes on, and a line says so."""
    monkeypatch.setattr(plugin, "device_type", lambda: device)
    with caplog.at_level(logging.INFO, logger="vllm.dsacp"):
        assert plugin.register_ascend() is host
    said = [line for line in lines(caplog) if "vllm-ascend is installed" in line]
    assert len(said) == (0 if host else 1)
    assert host or f"the platform is {device}" in said[0]


def test_modules_are_those_that_the_engine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner's module that is not loaded is not asked for, and both fit as released."""
    assert list(hooks.drafting_hooks(None, None)) == []
    assert list(hooks.drafting_hooks(install().proposer, modules().speculator)) == []
    (reason,) = hooks.drafting_hooks(ModuleType("empty"), None)
    assert "no class with" in str(reason)
