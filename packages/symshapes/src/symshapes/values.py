"""Functions of numbers that may be symbolic."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from .env import ShapeEnv
from .expr import constant


def is_symbolic(x: Any) -> bool:
    """Whether ``x`` is a SymInt, SymFloat or SymBool."""
    return isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_nested_int(size: Any) -> bool:
    """Whether a size or stride is a multiple of the ragged size of a nested tensor."""
    return type(size) is torch.SymInt and size.node.is_nested_int()


def expr_of(x: Any) -> Any:
    """The simplified SymPy expression of a Python number or symbolic value."""
    if is_symbolic(x):
        return x.node.expr
    return x if isinstance(x, sympy.Basic) else constant(x)


def hint_of(x: Any) -> Any:
    """The value in the example call. Raises GuardOnDataDependent when ``x`` is unbacked."""
    if not is_symbolic(x):
        return x
    return x.node.shape_env.hint_of(x.node.expr) if x.node.hint is None else x.node.hint


def statically_known_true(x: Any) -> bool:
    """Whether ``x`` (a bool or SymBool) is true for all admissible sizes. Never records a guard."""
    return x.node.statically_known_true() if is_symbolic(x) else bool(x)


def sym_int(expr: Any, env: ShapeEnv) -> int | torch.SymInt:
    """A SymInt of ``env`` for an integer expression; a Python int when it is constant."""
    return env.wrap(expr, int)


def free_symbols(x: Any) -> set[sympy.Symbol]:
    """The symbols in a number, expression, tensor's sizes, strides and offset, or sequence."""
    if isinstance(x, torch.Tensor):
        return free_symbols([*x.shape, *x.stride(), x.storage_offset()])
    if isinstance(x, (list, tuple)):
        return set().union(*(free_symbols(i) for i in x))
    if is_nested_int(x):
        return set()
    return set(expr_of(x).free_symbols) if isinstance(x, sympy.Basic) or is_symbolic(x) else set()
