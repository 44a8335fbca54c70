"""Tests beside an installed vllm-ascend; ``nox -s ascend`` makes the environment."""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# other sessions have no vllm-ascend: there these files are not collected, and nox's closing
# report names the session that was not run
collect_ignore_glob = [] if importlib.util.find_spec("vllm_ascend") else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the parity tests compared."""
    compare = sys.modules.get("ascend_double.compare")
    if compare is not None and compare.TOTALS:
        counts = ", ".join(f"{count:,} {name}" for name, count in compare.TOTALS.items())
        terminalreporter.write_line(f"parity with vllm-ascend {version('vllm-ascend')}: {counts}")


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an engine of its own, as vLLM does by its current configuration."""
    from dsacp.vllm.ascend import builder, plugin
    from dsacp.vllm.aside import Engine

    engine = Engine()
    monkeypatch.setattr(plugin, "current_engine", lambda: engine)
    # the double makes a configuration a builder, where an engine has one
    monkeypatch.setattr(builder, "engine_of", lambda _config: engine)
