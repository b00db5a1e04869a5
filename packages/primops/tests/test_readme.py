"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

from primops import DEFAULT, OPSET

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_examples_run(capsys):
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, namespace)
    assert "erf(" in capsys.readouterr().out


def test_numbers_are_true():
    assert f"{len(OPSET)} *prims*" in README
    assert len(DEFAULT) > 700
