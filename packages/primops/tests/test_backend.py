"""The testing kit: generated graphs are valid, and a wrong backend is noticed and named."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from primops import check_prims, decompose, evaluate, prims
from primops.testing.backend import check_prim_backend, graph_of, prim_graphs
from primops.testing.strategies import prim_calls
from primops.text import format_graph

NAMES = (
    "add",
    "exp",
    "sum",
    "where",
    "cat",
    "index",
    "window",
    "convert",
    "iota",
    "mm",
    "sort",
    "cond",
)


def interpret(graph, inputs):
    return lambda *given: evaluate(graph, given)


def without_negation(graph, inputs):
    for node in graph.graph.nodes:
        if node.target is prims.exp:
            node.target = prims.expm1
    return lambda *given: evaluate(graph, given)


def test_evaluator_passes():
    report = check_prim_backend(interpret, names=NAMES, examples=5)
    assert not report.failed and set(report.passed) == {*NAMES, "graphs"}


def test_wrong_backend_is_named():
    report = check_prim_backend(without_negation, names=["add", "exp"], graphs=False, examples=10)
    assert report.passed == ["add"] and "error" in report.failed["exp"]
    assert "1 pass, 1 fail" in str(report)


@settings(max_examples=25)
@given(prim_graphs())
def test_graphs_are_prim_graphs(made):
    check_prims(made.graph)
    again = decompose(made.graph)
    assert format_graph(decompose(again)) == format_graph(again)
    for a, b in zip(evaluate(again, made.inputs), evaluate(made.graph, made.inputs), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@settings(max_examples=10)
@given(prim_calls("bmm"))
def test_extern_prims_are_spelled_as_operators(call):
    graph = graph_of(call).graph
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [
        torch.ops.aten.bmm.default
    ]
