"""The example of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_example(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path))
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
