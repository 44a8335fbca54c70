import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("README.md", "docs/**/*.md", "packages/*/README.md")
    for page in ROOT.glob(pattern)
    if "```python\n" in page.read_text()
)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_examples_run_and_print_what_they_say(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of one page share a namespace; ``print(...)  # -> text`` states what is printed."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    exec(compile(code, str(page), "exec"), {"__name__": page.stem})
    printed = iter(capsys.readouterr().out.splitlines())
    for stated in re.findall(r"  # -> (.*)$", code, re.MULTILINE):
        assert any(says(stated, line) for line in printed), stated


def says(stated: str, line: str) -> bool:
    """Whether a line was stated, alone or before a remark; an empty line says nothing."""
    return bool(line) and re.match(rf"{re.escape(line)}($|[,:] )", stated) is not None


@pytest.mark.parametrize(
    ("line", "expected"),
    [("16", True), ("", False), ("1", False), ("17", False), ("16: three", False)],
)
def test_only_the_stated_text_counts_as_printed(line: str, expected: bool) -> None:
    """A blank line that an example printed was taken for every text."""
    assert says("16: three requests of K+1 tokens", line) is expected
    assert says("16, a bucket", "16")
    assert says("[4, 16, 16]", "[4, 16, 16]")
