"""Inputs of which a program overwrites some elements are updated in place, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from loopir import Options, compile_graph
from loopir.host.host_program import HostProgram
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

CACHE, ROWS, VALUES = (6, 5), torch.tensor([4, 1]), (2, 5)


def compiled(function: Callable[..., object], *args: torch.Tensor) -> HostProgram:
    """A program whose first result is written back to its first input."""
    graph = trace(function, *args)
    next(iter(graph.graph.nodes)).meta["written"] = 0
    return compile_graph(
        graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )


def put(cache, rows, values):
    new = cache.index_put((rows,), values)
    return new, new.sum(0)


def read_before(cache, rows, values):
    return cache.index_put((rows,), values), cache.sum(0)


def depend_on_old(cache, rows, values):
    return (cache.index_put((rows,), cache[rows] + values),)


def accumulate(cache, rows, values):
    return (cache.index_put((rows,), values, accumulate=True),)


def transposed(cache, rows, values):
    return (cache.t().clone().index_put((rows,), values[0, 0]).t().contiguous(),)


@pytest.mark.parametrize(
    ("function", "in_place"),
    [
        (put, True),
        (read_before, False),
        (depend_on_old, False),
        (accumulate, False),
        (transposed, False),
    ],
)
def test_values_and_memory(function, in_place):
    torch.manual_seed(0)
    args = [torch.randn(CACHE), ROWS, torch.randn(VALUES)]
    host = compiled(function, *args)
    expected = function(*args)
    given = args[0].clone()
    results = host(given, *args[1:])
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    assert (results[0].data_ptr() == given.data_ptr()) == in_place
    torch.testing.assert_close(given, expected[0] if in_place else args[0])


def test_nothing_is_written_where_memory_is_not_reused():
    args = (torch.randn(CACHE), ROWS, torch.randn(VALUES))
    graph = trace(put, *args)
    next(iter(graph.graph.nodes)).meta["written"] = 0
    options = Options(check=True, reuse=False)
    host = compile_graph(graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=options)
    given = args[0].clone()
    host(given, *args[1:])
    torch.testing.assert_close(given, args[0])
