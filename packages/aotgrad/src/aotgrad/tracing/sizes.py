"""Builds graph nodes for size expressions: one node per SymPy expression, at its first use
(contract C2.5).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from symshapes import MATH_FUNCTIONS, FloorDiv, Mod, ToFloat, TrueDiv, Trunc, expr_of, is_symbolic

from aotgrad.errors import Unsupported

_BINARY: dict[type, Callable[..., Any]] = {
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    TrueDiv: operator.truediv,
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy.Max: torch.sym_max,
    sympy.Min: torch.sym_min,
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
    sympy.And: operator.and_,
    sympy.Or: operator.or_,
}
_UNARY: dict[type, Callable[..., Any]] = {
    ToFloat: torch.sym_float,
    Trunc: torch.sym_int,
    sympy.Not: torch.sym_not,
}
_UNARY |= {
    MATH_FUNCTIONS[name]: f
    for name in MATH_FUNCTIONS
    if (f := getattr(torch, f"_sym_{name}", None))
}

SIZE_OPS: frozenset[Callable[..., Any]] = frozenset(
    [*_BINARY.values(), *_UNARY.values(), operator.sub, operator.neg, operator.pow]
)


class SizeNodes:
    """Maps SymPy expressions to the nodes of one graph that compute them."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self._nodes: dict[Any, torch.fx.Node] = {}

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Registers ``node`` as computing ``value``; this makes bare symbols usable."""
        self._nodes.setdefault(expr_of(value), node)

    def is_bound(self, value: Any) -> bool:
        """Whether there is a node that computes ``value``."""
        return expr_of(value) in self._nodes

    def argument(self, value: Any) -> Any:
        """A node (or a Python number) for a SymInt, SymFloat or SymBool."""
        return self.node_for(expr_of(value))

    def node_for(self, expr: Any) -> Any:
        """A node for an expression; a Python number if it is constant.

        Raises Unsupported for an operation outside clause C2.1 and for a symbol that no node
        computes.
        """
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr)
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        node = self._nodes.get(expr)
        if node is None:
            node = self._nodes[expr] = self._build(expr)
        return node

    def _build(self, expr: Any) -> torch.fx.Node:
        if expr.is_Symbol:
            raise Unsupported("AG001", f"nothing in the graph computes the size symbol {expr}")
        numerator, denominator = (
            sympy.fraction(sympy.together(expr)) if _has_fraction(expr) else (expr, sympy.S.One)
        )
        if denominator != 1:
            exact = operator.floordiv if expr.is_integer else operator.truediv
            return self._call(exact, self.node_for(numerator), self.node_for(denominator))
        if isinstance(expr, sympy.Pow):
            return self._call(operator.pow, *(self.node_for(a) for a in expr.args))
        if expr.func in _UNARY:
            return self._call(_UNARY[expr.func], self.node_for(expr.args[0]))
        if expr.func not in _BINARY:
            raise Unsupported("AG002", f"size expression {expr} uses {expr.func.__name__}")
        op = _BINARY[expr.func]
        operands = [self.node_for(a) for a in expr.args]
        return reduce(lambda a, b: self._call(op, a, b), operands[1:], operands[0])

    def _call(self, op: Callable[..., Any], *args: Any) -> Any:
        value = op(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))
        if not is_symbolic(value):
            return value
        node = self.graph.call_function(op, args)
        node.meta["val"] = value
        return node


def _has_fraction(expr: Any) -> bool:
    return any(a.is_Rational and not a.is_Integer for a in sympy.preorder_traversal(expr)) or any(
        isinstance(a, sympy.Pow) and a.exp.is_negative for a in sympy.preorder_traversal(expr)
    )
