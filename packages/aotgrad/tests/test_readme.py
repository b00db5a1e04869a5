"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path


def test_readme_example_runs(capsys):
    text = (Path(__file__).parent.parent / "README.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "aten.mm" in shown and "patterns silu: 1 matches" in shown and "silu.default(x0)  # by silu" in shown
