"""SymPy expressions of numbers that may be symbolic."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from .expr import constant
from .values import is_nested_int, is_symbolic


def expr_of(x: Any) -> Any:
    """The simplified SymPy expression of a Python number or symbolic value."""
    if is_symbolic(x):
        return x.node.expr
    return x if isinstance(x, sympy.Basic) else constant(x)


def free_symbols(x: Any) -> set[sympy.Symbol]:
    """The symbols in a number, expression, tensor's sizes, strides and offset, or sequence."""
    if isinstance(x, torch.Tensor):
        return free_symbols([*x.shape, *x.stride(), x.storage_offset()])
    if isinstance(x, (list, tuple)):
        return set().union(*(free_symbols(i) for i in x))
    if is_nested_int(x):
        return set()
    return set(expr_of(x).free_symbols) if isinstance(x, sympy.Basic) or is_symbolic(x) else set()
