"""Graphs outside the contract, operators that lie, indices out of range: a clear error, never a
wrong read.
"""

import operator
import re

import primops
import pytest
import torch
from loopir import ExternError, LoweringError, compile_graph, lower
from loopir.testing import EvaluatorCodeGenerator
from primops import TensorMeta
from primops.testing import trace

EVALUATOR = {"cpu": EvaluatorCodeGenerator()}
MATRIX = TensorMeta((4, 3), (3, 1), torch.float32, torch.device("cpu"))


def graph_of(build):
    """A graph of one input and what ``build(graph, x)`` returns."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = MATRIX
    node = build(graph, x)
    if isinstance(node.target, primops.Prim):
        node.meta.setdefault("val", MATRIX)
    node.meta.setdefault("stack_trace", 'File "model.py", line 7, in forward\n    y = x.relu()')
    graph.output((node,)).meta["val"] = (MATRIX,)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def with_meta(node, meta):
    node.meta["val"] = meta
    return node


BOGUS = primops.Prim(
    "bogus(a)",
    group="elementwise",
    meaning="",
    dtype_rule="as a",
    meta_rule=lambda a: a,
    reference=torch.exp,
)
HALF = TensorMeta((4, 3), (3, 1), torch.float16, torch.device("cpu"))
WIDE = TensorMeta((4, 9), (9, 1), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda g, x: g.call_method("relu", (x,)), "C3.1: call_method is not allowed"),
        (lambda g, x: g.call_function(torch.relu, (x,)), "neither a prim nor an operator"),
        (lambda g, x: g.call_function(operator.add, (x, 1)), "neither a prim nor an operator"),
        (lambda g, x: g.call_function(torch.ops.aten.add_.Tensor, (x, x)), "mutates its arguments"),
        (lambda g, x: with_meta(g.call_function(primops.prims.exp, (x,)), None), "C3.4"),
        (lambda g, x: with_meta(g.call_function(primops.prims.exp, (x,)), WIDE), "C3.4: meta is"),
        (
            lambda g, x: g.call_function(
                primops.prims.add, (x, with_meta(g.placeholder("y"), WIDE))
            ),
            "C3.2: add",
        ),
        (
            lambda g, x: with_meta(
                g.call_function(primops.prims.add, (with_meta(x, HALF), x)), HALF
            ),
            "C3.3: add on torch.float16",
        ),
        (
            lambda g, x: g.call_function(primops.prims.sum, (x,), {"dims": (7,)}),
            r"C3.2: sum.*dims \(7,\)",
        ),
        (
            lambda g, x: with_meta(g.call_function(BOGUS, (x,)), MATRIX),
            "bogus is no prim of the op set",
        ),
    ],
    ids=[
        "method",
        "function",
        "python operator",
        "mutation",
        "no meta",
        "wrong meta",
        "shapes",
        "half",
        "dims",
        "unknown prim",
    ],
)
def test_graphs_outside_the_contract_name_node_and_line(build, says):
    graph = graph_of(build)
    for lowered in (
        lambda: lower(graph),
        lambda: compile_graph(graph, [torch.randn(4, 3)], codegens=EVALUATOR),
    ):
        with pytest.raises(LoweringError, match=says) as error:
            lowered()
        assert re.search("node:? ", str(error.value)) and "y = x.relu()" in str(error.value)


@pytest.fixture
def liar():
    """An operator whose fake implementation promises more rows than it returns."""
    with torch.library._scoped_library("loopir_test", "FRAGMENT") as library:
        library.define("rows(Tensor x) -> Tensor")
        library.impl("rows", lambda x: x[:2].clone(), "CompositeExplicitAutograd")
        yield torch.ops.loopir_test.rows.default


def test_an_operator_that_returns_less_than_it_said(liar):
    def build(graph, x):
        y = graph.call_function(liar, (x,))
        y.meta = {
            "val": MATRIX,
            "stack_trace": 'File "model.py", line 7, in forward\n    y = rows(x)',
        }
        node = graph.call_function(primops.prims.exp, (y,))
        node.meta["val"] = MATRIX
        return node

    x = torch.randn(4, 3)
    host = compile_graph(graph_of(build), [x], codegens=EVALUATOR)
    with pytest.raises(
        ExternError, match=r"loopir_test.rows.default returned \(2, 3\) float32.*says \(4, 3\)"
    ) as error:
        host(x)
    assert "y = rows(x)" in str(error.value)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i] * 2,
        lambda x, i: x.gather(0, i.unsqueeze(1)),
        lambda x, i: x.index_put((i,), torch.zeros(())),
        lambda x, i: x.scatter_add(0, i.unsqueeze(1), torch.ones(2, 1)),
        lambda x, i: torch.nn.functional.embedding(i, x).sum(1),
    ],
    ids=["index", "gather", "index_put", "scatter_add", "embedding"],
)
@pytest.mark.parametrize("wrong", [6, -7, 1 << 40])
def test_indices_out_of_range_raise_index_error(fn, wrong):
    x, good = torch.randn(6, 3), torch.tensor([1, 5])
    host = compile_graph(primops.decompose(trace(fn, x, good)), [x, good], codegens=EVALUATOR)
    torch.testing.assert_close(host(x, good)[0], fn(x, good))
    with pytest.raises(IndexError):
        host(x, torch.tensor([1, wrong]))
