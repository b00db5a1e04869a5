"""Programs of a module, each against the same one of a second, captured copy, and the number of
their graphs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bytecode_dynamo as bd
import torch
from bytecode_dynamo import testing


def load(path: Path) -> types.ModuleType:
    """A fresh copy of a module."""
    return testing.load(path.read_text(), str(path))


def programs(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of a module whose first parameter is called ``x``."""
    found: dict[str, Callable[..., Any]] = {}
    for name, value in vars(module).items():
        code = getattr(inspect.unwrap(value) if callable(value) else None, "__code__", None)
        if (
            code is not None
            and not name.startswith("_")
            and value.__module__ == module.__name__
            and code.co_varnames[:1] == ("x",)
        ):
            found[name] = value
    return found


def check_program(eager: types.ModuleType, captured: types.ModuleType, name: str) -> None:
    """Behaviour and the number of graphs are as expected."""
    plain = programs(eager)[name]
    count = inspect.unwrap(plain).__code__.co_argcount

    def make() -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3) - 1.5
        return [x, []][:count] if count < 3 else [x, [], {"k": x + 1, "n": 2}]

    testing.check_against_eager(
        plain, make, compiled=bd.optimize("eager")(programs(captured)[name])
    )
    graphs, breaks = bd.counters["graphs"], bd.counters["graph_breaks"]
    broken = getattr(plain, "any_graphs", False)
    # after a break at the call, its function runs eagerly there
    inside = broken and getattr(plain, "inside_vmap", False)
    assert not bd.counters["fallbacks"] or inside, "capture failed"
    expected = getattr(plain, "graphs", 1)
    assert (graphs, breaks) == (expected, max(expected - 1, 0)) or broken, (
        f"{graphs} graphs and {breaks} breaks, expected {expected}"
    )
