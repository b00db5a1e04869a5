"""The README's examples run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import bytecode_dynamo as bd

README = Path(__file__).parent.parent / "README.md"


def test_readme_examples_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert blocks
    bd.reset()  # the examples count from zero
    names = {"__name__": "example"}
    for number, block in enumerate(blocks):
        path = tmp_path / f"example{number}.py"
        path.write_text(block)
        exec(compile(block, str(path), "exec"), names)
