"""Graphs with symbolic sizes, on the smallest possible symbolic integers."""

from __future__ import annotations

import operator
import warnings

import pytest
import sympy
import torch
from primops import (
    DEFAULT,
    MetaReading,
    PrimopsError,
    TensorMeta,
    check_prims,
    decompose,
    evaluate,
    prims,
    reading_with,
)
from primops.shapes import broadcast_shapes, concrete, larger, same_size, smaller
from primops.text import format_graph
from torch import fx

from packages.primops.tests.symbolic import Node

aten = torch.ops.aten
SIZE = sympy.Symbol("s0", integer=True, positive=True)


def size(expr=SIZE, hint=6):
    return torch.SymInt(Node(expr, hint))


def meta(*shape, dtype=torch.float32):
    return TensorMeta(tuple(shape), tuple(range(len(shape))), dtype, torch.device("cpu"))


def build(*nodes):
    """A C2 graph: ``s0``, ``x: f32[s0, 4]``, then calls ``(name, target, args, val)``; returns the
    last.
    """
    graph = fx.Graph()
    made = {"s0": graph.placeholder("s0"), "x": graph.placeholder("x")}
    made["s0"].meta["val"] = s0 = size()
    made["x"].meta["val"] = TensorMeta((s0, 4), (4, 1), torch.float32, torch.device("cpu"))
    name = "x"
    for name, target, args, val in nodes:
        args = fx.node.map_aggregate(args, lambda a: made.get(a, a) if isinstance(a, str) else a)
        made[name] = graph.call_function(target, args)
        made[name].meta["val"] = val
    graph.output((made[name],))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_size_arithmetic_becomes_parameters():
    s0 = size()
    gm = build(
        ("double", operator.mul, ("s0", 2), s0 * 2),
        ("flat", aten.view.default, ("x", ["double", 2]), meta(s0 * 2, 2)),
        ("scaled", aten.mul.Tensor, ("flat", "s0"), meta(s0 * 2, 2)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prim_graph = decompose(gm)
    check_prims(prim_graph)
    assert [n.name for n in prim_graph.graph.nodes] == ["s0", "x", "reshape", "mul", "output"]
    reshape = next(n for n in prim_graph.graph.nodes if n.target is prims.reshape)
    assert str(reshape.kwargs["shape"][0]) == "2*s0"
    assert "f32[2*s0, 2]" in format_graph(prim_graph, strict=False)
    for n in (6, 3):
        x = torch.randn(n, 4)
        assert torch.equal(evaluate(prim_graph, [n, x])[0], x.view(2 * n, 2) * n)
    again = decompose(prim_graph)
    assert format_graph(again, strict=False) == format_graph(prim_graph, strict=False)


def test_rules_do_not_guard():
    s0 = size()
    x = meta(s0, 4)
    with reading_with(MetaReading()):
        calls = {
            "sum.dim_IntList": (x, [0]), "mean": (x,), "_softmax": (x, 0, False),
            "native_layer_norm": (x, [4], None, None, 1e-5),
            "var.correction": (x, [0]), "slice.Tensor": (x, 0, 1), "select.int": (x, 0, -1),
            "cat": ([x, x],),
            "add.Tensor": (x, meta(4)), "expand": (x, [3, s0, 4]), "repeat": (x, [2, 1]),
            "constant_pad_nd": (x, [0, 0, 1, 1]),
            "slice_scatter": (x, meta(s0 - 1, 4), 0, 1),
            "native_batch_norm": (meta(s0, 4, 2), None, None, None, None, True, 0.1, 1e-5),
            "upsample_bilinear2d": (meta(1, 2, s0, s0), [s0 * 3, 5], True),
            "upsample_nearest2d": (meta(1, 2, s0, s0), [s0 * 2, s0 * 2]),
            "roll": (x, [1], [1]), "view": (x, [-1]), "arange": (s0,), "tril": (x,),
            "cumsum": (x, 0), "unbind.int": (x, 1),
            "nll_loss_forward": (x, meta(s0, dtype=torch.int64), None, 1, -100),
        }  # fmt: skip
        for name, args in calls.items():
            assert DEFAULT.get(name)(*args) is not NotImplemented, name


def test_sizes_compare_without_guards():
    s0 = size()
    assert same_size(s0, size()) and not same_size(s0, 4)
    assert broadcast_shapes((s0, 1), (4,)) == (s0, 4)
    assert same_size(smaller(s0, s0 + 1), s0) and same_size(larger(s0, s0 + 1), s0 + 1)
    assert str(smaller(s0, 3)) == "Min(3, s0)"
    with pytest.raises(AssertionError, match="guard"):
        concrete(s0)


def test_symbols_are_bound_by_shapes_too():
    gm = decompose(build(("y", aten.sum.default, ("x",), meta())))
    assert evaluate(gm, [5, torch.ones(5, 4)])[0] == 20


def test_unbound_symbol_is_an_error():
    other = size(sympy.Symbol("u0", integer=True))
    gm = build(("y", aten.mul.Tensor, ("x", other), meta(size(), 4)))
    with pytest.raises(PrimopsError, match="u0"):
        evaluate(decompose(gm), [5, torch.ones(5, 4)])
