"""Runs the Python examples of a README one after the other, as one program.

usage: python tools/readme_examples.py README
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path


def run_examples(readme: Path, folder: Path) -> None:
    """Each example becomes a file in ``folder``, so that tracebacks and captured code have a
    source; all share their names.
    """
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    if not blocks:
        raise ValueError(f"{readme} has no example in Python")
    names = {"__name__": "example"}
    for number, block in enumerate(blocks):
        path = folder / f"example{number}.py"
        path.write_text(block)
        exec(compile(block, str(path), "exec"), names)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_examples(Path(sys.argv[1]), Path(folder))
