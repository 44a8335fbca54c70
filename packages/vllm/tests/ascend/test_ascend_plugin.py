"""Switching on and off, standing aside, and what is decided by signatures."""

import json
import logging
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, Batch, common_metadata
from ascend_double.scenario import run

from dsacp.vllm.ascend import plugin
from dsacp.vllm.ascend.hooks import missing_hooks
from dsacp.vllm.ascend.plugin import choose, refuse_groups, register_ascend
from dsacp.vllm.ascend.settings import ascend_blockers

MODULE = plugin.BUILDER_MODULE


def stock() -> Any:
    return install().dsa_cp.AscendDSACPMetadataBuilder


def test_every_hook_fits_this_version() -> None:
    modules = install()
    assert list(missing_hooks(modules.dsa_cp, modules.rope)) == []


def test_backend_gives_our_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = install()
    backend = modules.dsa_v1.AscendDSABackend
    monkeypatch.setattr(backend, "get_builder_cls", staticmethod(stock))
    monkeypatch.setattr(plugin, "device_type", lambda: plugin.DEVICE_TYPE)
    assert register_ascend()
    ours = backend.get_builder_cls()
    assert issubclass(ours, stock())
    assert ours is not stock()
    other = modules.dsa_v1.AscendDSAMetadataBuilder
    assert choose(other) is other


def test_entry_point_acts_once_the_host_imports_its_modules() -> None:
    """The whole path in a fresh process: upstream's ``enable_dsa_cp`` decides, ours is given."""
    script = Path(__file__).with_name("entry_point.py")
    answer = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["early"] == []
    stock_name = "AscendDSACPMetadataBuilder"
    assert found["builder"] == [f"Dsacp{stock_name}", "DsacpBuilder", stock_name]
    assert not found["no_op"], "nobody serves yet"
    assert found["wrapped"]


def test_one_variable_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSACP_ENABLE", "0")
    assert choose(stock()) is stock()


def test_a_new_field_or_parameter_stands_aside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modules = install()

    def build(self: Any, common_attn_metadata: Any) -> None:
        """Stands for a later version's signature."""

    changed = type("Builder", (stock(),), {"build": build, "__module__": stock().__module__})
    monkeypatch.setattr(modules.dsa_cp, "AscendDSACPMetadataBuilder", changed)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(changed) is changed
        assert choose(changed) is changed
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "Builder.build(self, common_attn_metadata)" in lines[0]


BODIES = {
    "a maximum of its own": "reads amax",
    "lengths as they are": "no longer reads clone, item, max",
    "another signature": "_build_qli_metadata(self, query_start_loc)",
}


def changed_plan(kind: str) -> Any:
    """Return a later version's ``_build_qli_metadata``, made of what today's reads and a change."""
    kept = stock()._build_qli_metadata.__code__.co_names
    if kind == "another signature":
        return eval("lambda self, query_start_loc: None")
    names = [*kept, "amax"] if kind == "a maximum of its own" else list(kept)
    if kind == "lengths as they are":
        names = [name for name in kept if name not in ("clone", "item", "max")]
    source = ", ".join(f"self.{name}" for name in names)
    return eval(f"lambda self, query_start_loc, seq_lens, seq_lens_q, num_reqs: ({source})")


@pytest.mark.parametrize("kind", BODIES)
def test_a_changed_plan_method_stands_aside(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Same class, same fields: only what one method asks for, or reads, is new."""
    modules, name = install(), f"{kind.replace(' ', '')}Builder"
    changed = type(
        name, (stock(),), {"_build_qli_metadata": changed_plan(kind), "__module__": MODULE}
    )
    monkeypatch.setattr(modules.dsa_cp, "AscendDSACPMetadataBuilder", changed)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(changed) is changed
        assert choose(changed) is changed
    (line,) = [record.getMessage() for record in caplog.records]
    assert BODIES[kind] in line
    assert name in line


def test_quant_modes_of_the_indexer_may_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host passes as quant modes is passed through, wherever it takes them from."""
    modules = install()
    kept = ", ".join(f"self.{name}" for name in stock()._build_qli_metadata.__code__.co_names)
    arguments = "self, query_start_loc, seq_lens, seq_lens_q, num_reqs"
    plan = eval(f"lambda {arguments}: ({kept}, self.indexer_quant_mode)")
    changed = type("Quant", (stock(),), {"_build_qli_metadata": plan, "__module__": MODULE})
    monkeypatch.setattr(modules.dsa_cp, "AscendDSACPMetadataBuilder", changed)
    assert choose(changed) is not changed


def test_unsupported_neighbours_leave_the_host_alone() -> None:
    config = HostDouble().config
    config.parallel_config.pipeline_parallel_size = 2
    config.parallel_config.use_ubatching = True
    config.speculative_config.method = "eagle3"
    found = " ".join(map(str, ascend_blockers(config)))
    assert "pipeline parallelism of 2" in found
    assert "ubatching" in found
    assert "'eagle3'" in found


def test_two_draft_groups_leave_draft_steps_to_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """Upstream U27: upstream advances positions once a group; vllm-ascend #16980's kind."""
    double = HostDouble(3, 2, 0)
    builders = [double.builder(choose(stock())) for _ in range(2)]
    groups = [SimpleNamespace(metadata_builders=[builder]) for builder in builders]
    refuse_groups(SimpleNamespace(draft_attn_groups=groups[:1], method="mtp"))
    assert builders[0].dsacp_refused is None
    assert builders[0].dsacp_seen
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        refuse_groups(SimpleNamespace(draft_attn_groups=groups, method="mtp"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "dsacp stands aside" in line
    assert "2 draft attention groups" in line
    assert all("2 draft attention groups" in builder.dsacp_refused for builder in builders)


def test_proposer_class_is_found_by_its_advance() -> None:
    """The hook needs no class name; both versions have one class with that method."""
    names = [
        name
        for name, value in vars(install().proposer).items()
        if isinstance(value, type) and plugin.ADVANCE in vars(value)
    ]
    assert len(names) == 1


def test_buffers_survive_sleep_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM #55013's kind: graphs hold addresses, so the buffers carry the tag that is kept."""
    tags: list[str] = []

    class Allocator:
        sleep_persistent_tag = "persistent"

        @classmethod
        def get_instance(cls) -> "Allocator":
            return cls()

        def use_allocation_tag(self, tag: str) -> Any:
            tags.append(tag)
            return nullcontext()

    module = ModuleType("vllm_ascend.device_allocator.camem")
    module.CaMemAllocator = Allocator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    double = HostDouble(3, 2, 0, sleep_mode=True)
    batch = Batch("verify", (4, 4), (9, 70), 8, 2, (False,) * 2, (0, 0))
    builder = double.builder(choose(stock()))
    tags.clear()
    common = common_metadata(batch, double, random.Random(0))
    builder.build(0, common, num_reqs_actual=2, common_ratio_to_sas_metadata={}, block_size=BLOCK)
    assert tags == ["persistent"]
    run(builder, double, batch)
    assert tags == ["persistent"] * 4, "the target's bank and one for each of three steps"
    run(builder, double, batch)
    assert len(tags) == 4
