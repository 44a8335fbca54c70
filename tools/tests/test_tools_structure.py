"""The measure of the tree, on small trees whose figures are known, and on this one."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import structure

ONE = "packages/one/src/dsacp/one"
TWO = "packages/two/src/dsacp/two"


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write a checkout of two packages; files that are not named are empty."""
    for name, text in {f"{ONE}/__init__.py": "", f"{TWO}/__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_files_lines_and_names_are_counted(tmp_path: Path) -> None:
    face = '"""Face."""\n\n__all__ = ["a", "b"]\n'
    inner = '__all__ = ["c"]\n'
    found = structure.measure(
        tree(
            tmp_path,
            {
                f"{ONE}/__init__.py": face,
                f"{ONE}/kernel/__init__.py": inner,
                f"{ONE}/short.py": "x = 1\n" * 59,
                f"{ONE}/exact.py": "x = 1\n" * 60,
                f"{ONE}/long.py": "x = 1\n" * 401,
                f"{ONE}/kernel/triton.py": "x = 1\n" * 400,
            },
        )
    )
    assert found.files == 7
    assert found.lines == 3 + 1 + 59 + 60 + 401 + 400
    assert found.public_names == 2, "of the top face alone"
    assert "dsacp.one.short" in found.small
    assert "dsacp.one.exact" not in found.small
    assert found.large == ("dsacp.one.long",)
    assert found.rooms == {"dsacp.one": 4}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from dsacp.one.inner import f, g", ["dsacp.one.inner.f", "dsacp.one.inner.g"]),
        ("import dsacp.one.inner", ["dsacp.one.inner"]),
        ("from dsacp.one import inner", ["dsacp.one.inner"]),
        ("def lazy():\n    from dsacp.one.inner import f", ["dsacp.one.inner.f"]),
        ("from dsacp.one import public", []),
        ("from dsacp.one.public import f", ["dsacp.one.public.f"]),
        ("from dsacp.two.own import f", []),
        ("from .own import f", []),
        ("import torch.inner", []),
    ],
)
def test_an_import_past_a_face_is_told(tmp_path: Path, line: str, expected: list[str]) -> None:
    """A public name may be a submodule's too: taken from the face, it is the face's."""
    files = {
        f"{ONE}/__init__.py": '__all__ = ["public"]\n',
        f"{ONE}/inner.py": "",
        f"{ONE}/public.py": "",
        f"{TWO}/own.py": "",
        f"{TWO}/user.py": f"{line}\n",
    }
    found = structure.measure(tree(tmp_path, files)).past_faces
    assert found == tuple(("dsacp.two.user", name) for name in expected)


def test_a_circle_is_found_and_one_of_type_checkers_apart(tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dsacp.two.b import x\n"
    files = {
        f"{ONE}/a.py": "from dsacp.one.b import x\n",
        f"{ONE}/b.py": "def lazy():\n    from .c import x\n",
        f"{ONE}/c.py": "from dsacp.one import a\n",
        f"{ONE}/outside.py": "from dsacp.one.a import x\n",
        f"{TWO}/a.py": typed,
        f"{TWO}/b.py": "from dsacp.two.a import x\n",
    }
    found = structure.measure(tree(tmp_path, files))
    assert found.circles == (("dsacp.one.a", "dsacp.one.b", "dsacp.one.c"),)
    assert found.typing_circles == (("dsacp.two.a", "dsacp.two.b"),)


def test_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        structure.main([str(tmp_path)])
    assert "expected packages/*/src" in capsys.readouterr().err


def test_frames_files_and_hops_are_counted(tmp_path: Path) -> None:
    """outer -> inner (another file) -> inner's own helper; functions in C are no frames."""
    (tmp_path / "traced_inner.py").write_text(
        "def helper():\n    return len('x')\ndef inner():\n    return helper()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        traced_inner = importlib.import_module("traced_inner")
    finally:
        sys.path.remove(str(tmp_path))

    def outer() -> None:
        traced_inner.inner()

    assert structure.profile(outer) == structure.Trace(frames=3, files=2, hops=1)


def test_the_whole_of_this_tree(capsys: pytest.CaptureFixture[str]) -> None:
    structure.main(["--trace"])
    lines = capsys.readouterr().out.splitlines()
    sources = list(structure.HERE.glob("packages/*/src/**/*.py"))
    assert lines[0].startswith(f"{len(sources)} files, ")
    frames, files, hops = (int(word) for word in lines[-1].split() if word.isdigit())
    assert frames > hops > files > 1
