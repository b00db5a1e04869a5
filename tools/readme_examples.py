"""Runs the Python examples of a page one after the other, as one program.

A block of ``text`` right after an example is what it prints; a line ``...`` in it stands for any
lines.

usage: python tools/readme_examples.py PAGE
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def run_examples(page: Path, folder: Path) -> None:
    """Each example becomes a file in ``folder``, so that tracebacks and captured code have a
    source; all share their names.
    """
    examples = EXAMPLE.findall(page.read_text())
    if not examples:
        raise ValueError(f"{page} has no example in Python")
    names = {"__name__": "example"}
    for number, (block, expected) in enumerate(examples):
        path = folder / f"example{number}.py"
        path.write_text(block)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown) if expected else contextlib.nullcontext():
            exec(compile(block, str(path), "exec"), names)
        if expected and not prints(shown.getvalue(), expected):
            raise AssertionError(f"{page} says\n{expected}\nbut prints\n{shown.getvalue()}")


def prints(shown: str, expected: str) -> bool:
    """Whether the text printed is the expected one."""
    lines = [re.escape(line) if line != "..." else r"(?:.*\n)*.*" for line in tidy(expected)]
    return re.fullmatch("\n".join(lines), "\n".join(tidy(shown))) is not None


def tidy(text: str) -> list[str]:
    """The lines without blanks at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_examples(Path(sys.argv[1]), Path(folder))
