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
        assert any(stated.startswith(line) for line in printed), stated
