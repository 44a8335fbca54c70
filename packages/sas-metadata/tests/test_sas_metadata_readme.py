"""The README's example runs, and prints what the README shows."""

import re
from pathlib import Path


def test_readme_example(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL).group(1)
    assert shown in capsys.readouterr().out
