import importlib.util
import os
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


def tree(folder: Path) -> dict[str, str]:
    """Every path below a folder, with where a link leads or what a file holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = path.read_text() if path.is_file() else "folder"
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Two packages in a workspace that a mistake may delete."""
    root = tmp_path / "clone"
    for name, needs in (("core", "[]"), ("graph", '["dsacp-core"]')):
        (root / "packages" / name / "src").mkdir(parents=True)
        (root / "packages" / name / "src" / "code.py").write_text(f"NAME = {name!r}\n")
        project = f'[project]\nname = "dsacp-{name}"\ndependencies = {needs}\n'
        (root / "packages" / name / "pyproject.toml").write_text(project)
    (root / "LICENSE").write_text("Apache License\n")
    return root


def test_a_taken_folder_is_left_alone_unless_told(tmp_path: Path, workspace: Path) -> None:
    fork = tmp_path / "fork"
    vendor.vendor("graph", fork, root=workspace)
    before = tree(fork)
    with pytest.raises(vendor.VendorError, match="--replace"):
        vendor.vendor("graph", fork, root=workspace)
    assert tree(fork) == before
    (workspace / "packages" / "core" / "src" / "code.py").rename(
        workspace / "packages" / "core" / "src" / "renamed.py"
    )
    (fork / "core" / "src" / "__pycache__").mkdir()  # what running a copy leaves is no change
    (fork / "graph" / "src" / "code.py").write_bytes(b"NAME = 'graph'\r\n")  # nor are line ends
    vendor.vendor("graph", fork, replace=True, root=workspace)
    assert (fork / "core" / "src" / "renamed.py").exists()
    assert not (fork / "core" / "src" / "code.py").exists()
    assert [path.name for path in sorted(fork.iterdir())] == ["core", "graph"]


@pytest.mark.parametrize("stamp", ["", "{}", "[]", '{"package": "graph", "files": {}}'])
def test_only_what_the_tool_wrote_is_replaced(tmp_path: Path, workspace: Path, stamp: str) -> None:
    """``--replace`` deleted a fork's own folder that was called ``core``."""
    fork = tmp_path / "fork"
    (fork / "core").mkdir(parents=True)
    (fork / "core" / "mine.txt").write_text("mine")
    if stamp:
        (fork / "core" / vendor.STAMP).write_text(stamp)
    before = tree(fork)
    with pytest.raises(vendor.VendorError, match="stamp .* found none"):
        vendor.vendor("graph", fork, replace=True, root=workspace)
    assert tree(fork) == before


def test_changes_to_a_copy_are_not_lost(tmp_path: Path, workspace: Path) -> None:
    fork = tmp_path / "fork"
    vendor.vendor("graph", fork, root=workspace)
    (fork / "graph" / "src" / "code.py").write_text("NAME = 'ours'\n")
    (fork / "graph" / "new.py").write_text("")
    before = tree(fork)
    with pytest.raises(vendor.VendorError, match=r"found 2 .* new.py, src/code.py: keep them"):
        vendor.vendor("graph", fork, replace=True, root=workspace)
    assert tree(fork) == before


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("place", ["packages", ".", "third_party/deep", "link", "around"])
def test_the_workspace_is_never_written(
    tmp_path: Path, workspace: Path, place: str, replace: bool
) -> None:
    """``vendor graph packages --replace`` deleted the sources that it was to copy."""
    destination = workspace / place
    if place == "link":
        destination = tmp_path / "link"
        destination.symlink_to(workspace / "packages")
    elif place == "around":  # a clone that has the name of a package
        destination = tmp_path
        workspace = workspace.rename(tmp_path / "core")
    before = tree(tmp_path)
    with pytest.raises(vendor.VendorError, match="apart from the workspace"):
        vendor.vendor("graph", destination, replace=replace, root=workspace)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("taken", ["file", "link", "dangling", "circle", "above", "read-only"])
def test_what_is_no_folder_of_ours_gives_one_line(
    tmp_path: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    taken: str,
) -> None:
    """Files and links gave raw errors, some of them after the first copy was deleted."""
    fork = tmp_path / "fork"
    vendor.vendor("core", fork, root=workspace)
    (tmp_path / "elsewhere").mkdir()
    destination = fork
    if taken == "file":
        (fork / "graph").write_text("mine")
    elif taken == "above":
        destination = fork / "core" / "LICENSE" / "below"
    elif taken == "read-only":  # a mode would not stop every user
        monkeypatch.setattr(vendor.tempfile, "mkdtemp", refuse)
    else:
        aims = {"link": "../elsewhere", "dangling": "nowhere", "circle": "graph"}
        (fork / "graph").symlink_to(aims[taken])
    before = tree(tmp_path)
    monkeypatch.setattr(vendor.vendor, "__kwdefaults__", {"replace": False, "root": workspace})
    assert vendor.main(["graph", str(destination), "--replace"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("expected ")
    assert tree(tmp_path) == before


def refuse(*arguments: object, **options: object) -> None:
    raise PermissionError("not here")


def test_a_copy_that_cannot_move_in_puts_the_others_back(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = tmp_path / "fork"
    vendor.vendor("graph", fork, root=workspace)
    (workspace / "LICENSE").write_text("another\n")
    before = tree(fork)
    rename = os.rename

    def stuck(self: Path, target: Path) -> Path:
        if self.name == "graph" and self.parent == fork:
            raise PermissionError(f"{self} is in use")
        rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", stuck)
    with pytest.raises(vendor.VendorError, match="is in use"):
        vendor.vendor("graph", fork, replace=True, root=workspace)
    assert tree(fork) == before


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
