"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path


def test_readme_example(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert "parallel(" in capsys.readouterr().out
