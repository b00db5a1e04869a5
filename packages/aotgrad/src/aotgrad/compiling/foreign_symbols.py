"""Graphs of another front end, with size symbols of its own shape environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from symshapes import FakeTensorMode, ShapeEnv, expr_of, is_fake, is_wrapper, python_text
from torch.fx.node import map_arg

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_foreign(value: Any) -> bool:
    """Whether a value is a size of another environment, or a tensor with such sizes."""
    if (
        isinstance(value, torch.Tensor)
        and not is_fake(value)
        and not is_wrapper(value)
        and value.layout is torch.strided
    ):
        return any(map(is_foreign, (*value.shape, *value.stride())))
    return isinstance(value, _NUMBERS) and not isinstance(value.node.shape_env, ShapeEnv)


def specialise_floats(graph: torch.fx.Graph) -> None:
    """Replaces floats that another front end passes as tensors by their values in this call, which
    its guards then fix.
    """
    for node in graph.find_nodes(op="call_method", target="item"):
        number = node.meta.get("example_value")
        if isinstance(number, torch.SymFloat) and is_foreign(number) and number.node.has_hint():
            value = float(number)
            for user in list(node.users):
                user.args, user.kwargs = map_arg(
                    (user.args, user.kwargs), lambda x, n=node, v=value: v if x is n else x
                )
            graph.erase_node(node)


class SymbolImporter:
    """Symbols of our environment for sizes of the other one, whose front end guards calls.

    ``report`` therefore hands our guards on to the other environment.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self.originals: dict[sympy.Symbol, torch.SymInt] = {}
        self.known: dict[Any, int | torch.SymInt] = {}

    def adopt(self, values: Sequence[Any]) -> list[Any]:
        """The values with our symbols. Numbers come first: strides are products of them."""
        foreign = sorted(filter(is_foreign, values), key=lambda v: isinstance(v, torch.Tensor))
        for value in foreign:
            is_tensor = isinstance(value, torch.Tensor)
            for size in (*value.shape, *value.stride()) if is_tensor else (value,):
                self.size(size)
        return [self._like(value) if is_foreign(value) else value for value in values]

    def _like(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return self.size(value)
        shape, strides = map(self.size, value.shape), map(self.size, value.stride())
        return self.mode.empty(tuple(shape), tuple(strides), dtype=value.dtype, device=value.device)

    def size(self, value: Any) -> int | torch.SymInt:
        """A size of our environment: an expression of known symbols, or a new symbol. 0 and 1 stay
        constants.
        """
        if not isinstance(value, torch.SymInt) or not is_foreign(value):
            return value
        expr = value.node.expr
        if expr not in self.known:
            self.known[expr] = self._new(value, expr)
        return self.known[expr]

    def _new(self, value: torch.SymInt, expr: Any) -> int | torch.SymInt:
        plain = all(
            part.is_Symbol or part.is_Integer or part.is_Add or part.is_Mul
            for part in sympy.preorder_traversal(expr)
        )
        env = self.mode.shape_env
        if plain and expr.free_symbols <= self.symbols.keys():
            return env.wrap(expr.xreplace(self.symbols))
        if value.node.has_hint() and int(value.node.hint) < 2:
            return int(value)
        hint = value.node.hint if value.node.has_hint() else None
        size = env.create_unbacked() if hint is None else env.create_symbol(int(hint))
        symbol = expr_of(size)
        self.originals[symbol] = value
        if expr.is_Symbol:
            self.symbols[expr] = symbol
        return size

    def report(self) -> None:
        """Guards in the other environment everything that was guarded in ours."""
        env = self.mode.shape_env
        names = {symbol: f"s[{i}]" for i, symbol in enumerate(self.originals)}
        scope = {"s": [*self.originals.values()], "math": math}
        for guard in (*env.input_guards(), *env.guards):
            if guard.expr.free_symbols <= names.keys():
                bool(eval(python_text(guard.expr, names), scope))
