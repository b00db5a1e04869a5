"""check_functional names the clause that a graph breaks."""

from __future__ import annotations

import operator

import pytest
import torch
from aotgrad import ContractError, check_functional, trace_functional
from symshapes import FakeTensorMode, ShapeEnv

aten = torch.ops.aten


def graph_of(build, *, symbol=False):
    mode = FakeTensorMode(ShapeEnv())
    graph = torch.fx.Graph()
    size = mode.shape_env.create_symbol(8) if symbol else 8
    x = graph.placeholder("x")
    x.meta["val"] = mode.empty((size, 2))
    graph.output(build(graph, x, mode, size))
    root = torch.nn.Module()
    root.number = 3
    return torch.fx.GraphModule(root, graph)


def call(graph, target, args, val):
    node = graph.call_function(target, args)
    node.meta["val"] = val
    return node


CASES = {
    "python target": ("C2.1", lambda g, x, m, s: (call(g, torch.sin, (x,), x.meta["val"]),)),
    "method": ("C2.1", lambda g, x, m, s: (_method(g, x),)),
    "in-place op": ("C2.2", lambda g, x, m, s: (call(g, aten.add_.Tensor, (x, 1), x.meta["val"]),)),
    "no meta": ("C2.3", lambda g, x, m, s: (g.call_function(aten.sin.default, (x,)),)),
    "two modes": (
        "C2.3",
        lambda g, x, m, s: (
            call(g, aten.sin.default, (x,), FakeTensorMode(ShapeEnv()).empty((8, 2))),
        ),
    ),
    "output not a tuple": ("C2.4", lambda g, x, m, s: x),
    "float output": ("C2.4", lambda g, x, m, s: (x, 1.5)),
    "attribute is no tensor": ("C2.7", lambda g, x, m, s: (_attribute(g, x),)),
}


def _method(graph, x):
    node = graph.call_method("sin", (x,))
    node.meta["val"] = x.meta["val"]
    return node


def _attribute(graph, x):
    node = graph.create_node("get_attr", "number")
    node.meta["val"] = x.meta["val"]
    return node


@pytest.mark.parametrize("name", list(CASES))
def test_bad_graph_is_rejected_by_clause(name):
    clause, build = CASES[name]
    with pytest.raises(ContractError) as caught:
        check_functional(graph_of(build))
    assert caught.value.clause == clause


def test_symbol_without_a_binder_is_rejected():
    gm = graph_of(lambda g, x, m, s: (call(g, aten.sin.default, (x,), x.meta["val"]),), symbol=True)
    with pytest.raises(ContractError) as caught:
        check_functional(gm)
    assert caught.value.clause == "C2.5"


@pytest.mark.filterwarnings("ignore:Raw SymInt")
def test_symint_in_args_is_rejected():
    def build(g, x, m, s):
        n = g.placeholder("n")
        n.meta["val"] = s
        return (call(g, aten.view.default, (x, [s * 2]), x.meta["val"]),)

    with pytest.raises(ContractError) as caught:
        check_functional(graph_of(build, symbol=True))
    assert caught.value.clause == "C2.5"


def test_size_arithmetic_is_allowed():
    def build(g, x, m, s):
        n = g.placeholder("n")
        n.meta["val"] = s
        twice = call(g, operator.mul, (n, 2), s * 2)
        return (call(g, aten.view.default, (x, [twice]), m.empty((s * 2,))), twice)

    check_functional(graph_of(build, symbol=True))


def test_error_names_node_and_line():
    gm = graph_of(lambda g, x, m, s: (call(g, torch.sin, (x,), x.meta["val"]),))
    list(gm.graph.nodes)[1].meta["stack_trace"] = 'File "user.py", line 3, in f\n  y = x.sin()'
    with pytest.raises(ContractError, match="user.py") as caught:
        check_functional(gm)
    assert caught.value.node == "sin"


def test_trace_functional_returns_outputs_then_written_inputs():
    def f(x, y):
        x.add_(1)
        y.t().mul_(2)
        return x * y

    inputs = [torch.randn(3, 3), torch.randn(3, 3)]
    gm = trace_functional(f, inputs)
    check_functional(gm)
    out, new_x, new_y = gm(*[t.clone() for t in inputs])
    expected = f(*inputs)
    torch.testing.assert_close((out, new_x, new_y), (expected, *inputs))


def test_source_lines_travel_to_backward():
    from aotgrad import aot_backend

    gm = torch.fx.symbolic_trace(lambda x: x.sin().exp())
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f'File "user.py", line {len(node.name)}, in f\n  {node.name}'
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return gm.forward

    aot_backend(keep, partition="default")(gm, [torch.randn(3, requires_grad=True)])
    forward, backward = graphs
    traces = {
        n.target: n.meta.get("stack_trace", "")
        for n in forward.graph.nodes
        if n.op == "call_function"
    }
    assert "sin" in traces[aten.sin.default] and "exp" in traces[aten.exp.default]
    multiplications = [n for n in backward.graph.nodes if n.target is aten.mul.Tensor]
    assert [n.meta["forward_node"] for n in multiplications] == ["exp_default", "sin_default"]
    assert "exp" in multiplications[0].meta["stack_trace"]
