"""Programs by theme: each has the results, effects and exceptions of eager mode, in the number of
graphs that it states.

A program is a function of ``programs/*.py`` whose first parameter is ``x``; it may take a list
``log``, and a dict. ``program.graphs`` is the number of graphs (1 when nothing is said).
"""

from __future__ import annotations

import functools
from pathlib import Path

import bytecode_dynamo as bd
import pytest

from .comparing import check_program, load, programs

THEMES = sorted((Path(__file__).parent / "programs").glob("*.py"))


@functools.cache
def pair(path: Path):
    return load(path), load(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param(path, name, id=f"{path.stem}-{name}")
        for path in THEMES
        for name in programs(pair(path)[0])
    ],
)
def test_program(path: Path, name: str) -> None:
    bd.reset()
    check_program(*pair(path), name)
