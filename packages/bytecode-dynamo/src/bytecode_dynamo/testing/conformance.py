"""A conformance kit for capture: fixed and random programs against eager mode.

A capture is a function ``capture(function, backend) -> compiled``; it gives each graph with example
inputs to ``backend``, which returns what runs instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from symshapes.testing.report import Report

from bytecode_dynamo.api import optimize, reset
from bytecode_dynamo.graph.verify import check_captured

from .oracle import check_against_eager, check_source, load

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
Capture = Callable[[Callable[..., Any], Backend], Callable[..., Any]]
TEXT = (Path(__file__).parent / "corpus.py").read_text()
CALLS = 4
"""Calls of each fixed program: sizes, numbers and lengths change in the third and the fourth."""


def own_capture(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    """This package's capture."""
    reset()
    return optimize(backend)(function)


def check_capture(capture: Capture, *, programs: int = 0, strict: bool = True) -> Report:
    """Programs through a capture, against eager mode.

    Each must return, raise, print and change what it does in eager mode, and hand at least one
    graph to the backend. Graphs that break contract C1 count in an area of their own.

    Args:
        capture: what is checked.
        programs: random programs to run besides the fixed ones (needs Hypothesis).
        strict: raise AssertionError with the failures, if there are any.
    """
    report = Report("capture", getattr(capture, "__name__", repr(capture)), "programs")
    # two namespaces, neither of this package, whose frames are never captured
    eager, captured = (load(TEXT, "corpus.py") for _ in range(2))
    for area, names in eager.PROGRAMS.items():
        for name in names:
            graphs: list[torch.fx.GraphModule] = []
            with report.case(area, name):
                function = getattr(eager, name)
                compiled = capture(getattr(captured, name), _keeping(graphs))
                for call in range(CALLS):
                    make = partial(eager.arguments, call)
                    check_against_eager(function, make, compiled=compiled, calls=1, seed=call)
                assert graphs, "no graph was captured"
            for number, graph in enumerate(graphs):
                with report.case("contract C1", f"{name}, graph {number}"):
                    check_captured(graph)
    if programs:
        _check_random(capture, programs, report)
    if strict:
        report.raise_if_wrong()
    return report


def _keeping(graphs: list[torch.fx.GraphModule]) -> Backend:
    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    return backend


def _check_random(capture: Capture, count: int, report: Report) -> None:
    fuzz = importlib.import_module("bytecode_dynamo.testing.fuzz")
    strategies = importlib.import_module("bytecode_dynamo.testing.strategies")
    for number, text in enumerate(fuzz.drawn(count)):
        with report.case("random programs", f"program {number}"):
            try:
                check_source(text, strategies.arguments, capture=capture)
            except AssertionError as error:
                own = text.partition("def f(x, log):")[2]
                raise AssertionError(f"{error}\n{own}") from None
