"""The README's example runs."""

import re
from pathlib import Path


def test_example_runs() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
