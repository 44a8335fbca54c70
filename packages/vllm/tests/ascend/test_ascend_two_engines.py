"""Two engines beside vllm-ascend in one process."""

import logging
from typing import Any

import pytest
from ascend_double import HostDouble
from ascend_double.scenario import stock

from dsacp.vllm.ascend import builder as ascend_builder
from dsacp.vllm.ascend import hooks, plugin
from dsacp.vllm.ascend.plugin import choose
from dsacp.vllm.aside import Engine
from dsacp.vllm.settings import Blocker


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.dsacp"]


def test_an_engine_decides_for_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A decision was kept a process long: what the first engine met was the second one's too."""
    refuse: list[Blocker] = [Blocker("a changed proposer", "see it")]
    engine = Engine()
    monkeypatch.setattr(plugin, "drafting_hooks", lambda *_: iter(refuse))
    monkeypatch.setattr(plugin, "current_engine", lambda: engine)
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        assert choose(stock()) is choose(stock()) is stock()
        engine = Engine()
        assert choose(stock()) is stock()
    assert len(lines(caplog)) == 2, "each engine hears why, once"
    engine = Engine()
    refuse.clear()
    assert issubclass(choose(stock()), stock())
    assert choose(stock()) is not stock()


def test_a_builder_names_all_that_its_configuration_is_refused_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a reason was said, and the last one alone was kept."""
    double, kinds = HostDouble(3, 2, 0), ("pipeline parallelism of 2", "ubatching")
    reasons = [Blocker(kind, "switch it off") for kind in kinds]
    monkeypatch.setattr(ascend_builder, "ascend_blockers", lambda _config: iter(reasons))
    with caplog.at_level(logging.WARNING, logger="vllm.dsacp"):
        builder = double.builder(choose(stock()))
    (line,) = lines(caplog)
    for part in kinds:
        assert part in line
        assert part in builder.dsacp_refused


def test_bodies_are_looked_at_beside_missing_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """One changed signature hid every changed body: the line grew after each upgrade."""
    from ascend_double import install

    modules = install()
    kept = ", ".join(f"self.{name}" for name in stock()._build_qli_metadata.__code__.co_names)
    members: dict[str, Any] = {
        "_build_qli_metadata": eval(
            f"lambda self, query_start_loc, seq_lens, seq_lens_q, num_reqs: ({kept}, self.amax)"
        ),
        "_num_compressor_metadata_rows": lambda self, other: None,  # noqa: ARG005
        "__module__": plugin.BUILDER_MODULE,
    }
    changed = type("Later", (stock(),), members)
    monkeypatch.setattr(modules.dsa_cp, "AscendDSACPMetadataBuilder", changed)
    monkeypatch.delattr(modules.dsa_cp, "DSACPMetadata")
    found = "\n".join(map(str, hooks.missing_hooks(modules.dsa_cp, modules.rope)))
    assert "without DSACPMetadata" in found
    assert "_num_compressor_metadata_rows(self, other)" in found
    assert "_build_qli_metadata that reads amax" in found
    assert "_num_compressor_metadata_rows that" not in found


def test_a_remedy_fits_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of 0.26.0rc1 were told to use 0.26.0rc1."""
    from dsacp.vllm.ascend import settings

    said = {}
    for installed in ("0.26.0rc1", "0.30.0rc2"):
        monkeypatch.setattr(settings, "version", lambda _, installed=installed: installed)
        said[installed] = settings.remedy()
    assert "has changed this vllm-ascend 0.26.0rc1" in said["0.26.0rc1"]
    assert said["0.30.0rc2"] == (
        "use vllm-ascend 0.25.1rc1 or 0.26.0rc1, or a dsacp that knows 0.30.0rc2"
    )
