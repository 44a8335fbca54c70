"""A command's result: refused before the work, or written whole."""

import os
from pathlib import Path

import pytest

from dsacp.core import LayoutError, check_output, write_whole
from dsacp.core.output import PART_PREFIX


def left_over(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PART_PREFIX}*"))


@pytest.mark.parametrize("name", ["other", "link", "hard", "chain", "dotted"])
def test_no_result_replaces_what_the_run_reads(tmp_path: Path, name: str) -> None:
    """``replay --trace x --json x`` wrote its report over the trace."""
    source = tmp_path / "source"
    source.write_text("precious")
    aims = {
        "other": source,
        "link": tmp_path / "link",
        "hard": tmp_path / "hard",
        "chain": tmp_path / "chain",
        "dotted": tmp_path / "folder" / ".." / "source",
    }
    aims["link"].symlink_to(source)
    aims["hard"].hardlink_to(source)
    aims["chain"].symlink_to("link")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LayoutError, match="--json .*source, which the run reads"):
        check_output("--json", aims[name], reads=[None, source])
    assert source.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("folder", "a folder"),
        ("missing/x", "no folder .*missing"),
        ("file/x", "no folder .*file"),
        ("dangling", "no folder .*nowhere"),
        ("x" * 300, "name too long"),
        ("circle", "(Symlink loop|.*symbolic links)"),
    ],
)
def test_places_that_take_no_file_are_known_before(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere/x")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(LayoutError, match=f"--json .*found .*{found}"):
        check_output("--json", tmp_path / name)


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_permission_is_asked_of_file_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    path = tmp_path / "x"
    path.write_text("")
    refused = path if locked == "file" else tmp_path
    monkeypatch.setattr(os, "access", lambda asked, _mode: asked != refused)
    with pytest.raises(LayoutError, match="no permission to write"):
        check_output("--json", path)


@pytest.mark.parametrize("name", ["new", "old", "link", "dangling"])
def test_a_file_is_replaced_whole_where_it_lies(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "old").chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "dangling").symlink_to("new")
    path = tmp_path / name
    check_output("--json", path, reads=[tmp_path / "unread"])
    write_whole(path, "after\n")
    assert path.read_text() == "after\n"
    assert path.is_symlink() == (name in ("link", "dangling"))
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640
    assert not left_over(tmp_path)


def test_what_was_there_survives_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that was cut short by a full disk left half a file in place of the old one."""
    path = tmp_path / "report"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert not left_over(tmp_path)


def test_devices_are_written_in_place() -> None:
    check_output("--json", Path(os.devnull))
    write_whole(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()
    check_output("--json", None)
