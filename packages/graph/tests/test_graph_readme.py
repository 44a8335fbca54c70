"""The README's example runs and prints what it says."""

import re
from pathlib import Path

import pytest


def test_readme_example(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("[8, 4, 10, 1, 1, 1] 1\n")
    assert "swa/step0/seq_lens" in printed
    assert "0x5 0 words past the end of swa/step0/seq_lens" in printed
    assert len(blocks) == 1
