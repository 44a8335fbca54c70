import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "tools" / "vendor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


vendor = load()


def test_closure_is_lowest_first_and_complete() -> None:
    names = [folder.name for folder in vendor.closure("drafting-cache")]
    assert names == ["core", "kernels", "rope-proxy", "sas-metadata", "drafting-cache"]
    assert [folder.name for folder in vendor.closure("dsacp-graph")] == ["core", "graph"]
    assert vendor.closure("dsacp")[-1].name == "dsacp"


def test_copies_name_their_siblings_by_path(tmp_path: Path) -> None:
    copies = vendor.vendor("rope-proxy", tmp_path / "third_party")
    assert [copy.name for copy in copies] == ["core", "kernels", "rope-proxy"]
    sources = tomllib.loads((copies[-1] / "pyproject.toml").read_text())["tool"]["uv"]["sources"]
    assert sources == {
        f"dsacp-{name}": {"path": f"../{name}", "editable": True} for name in ("core", "kernels")
    }
    for copy in copies:
        assert (copy / "LICENSE").read_text().lstrip().startswith("Apache License")
        assert list((copy / "src" / "dsacp").glob("*/py.typed"))
        assert not list(copy.rglob("__pycache__"))


def test_a_copy_runs_outside_the_workspace(tmp_path: Path) -> None:
    """In a process of its own that sees nothing but the copies and torch."""
    copies = vendor.vendor("rope-proxy", tmp_path)
    paths = [str(copy / "src") for copy in copies]
    program = (
        f"import sys; sys.path[:0] = {paths}\n"
        "import dsacp.core, dsacp.rope_proxy\n"
        "print(dsacp.core.__file__, dsacp.rope_proxy.__file__, sep='\\n')\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert all(line.startswith(str(tmp_path)) for line in result.stdout.split())


def test_a_taken_folder_is_left_alone_unless_told(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    mine = tmp_path / "core" / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(vendor.VendorError, match="--replace"):
        vendor.vendor("graph", tmp_path)
    assert mine.exists()
    assert not (tmp_path / "graph").exists()
    vendor.vendor("graph", tmp_path, replace=True)
    assert not mine.exists()
    assert (tmp_path / "graph" / "pyproject.toml").exists()


def test_an_unknown_package_names_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vendor.main(["ropes", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "found 'ropes'" in message
    assert "rope-proxy" in message
    assert not (tmp_path / "out").exists()


def test_a_source_without_a_copy_is_refused() -> None:
    text = "[tool.uv.sources]\ndsacp-core = { workspace = true }\n"
    assert 'path = "../core"' in vendor.rewrite_sources(text, ["core"])
    with pytest.raises(vendor.VendorError, match="dsacp-core"):
        vendor.rewrite_sources(text, ["graph"])


def test_the_command_prints_how_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vendor.main(["graph", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"pip install -e {tmp_path}/core -e {tmp_path}/graph\n"
