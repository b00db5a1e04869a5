"""Functions of numbers that may be symbolic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .env import ShapeEnv


def is_symbolic(x: Any) -> bool:
    """Whether ``x`` is a SymInt, SymFloat or SymBool."""
    return isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_nested_int(size: Any) -> bool:
    """Whether a size or stride is a multiple of the ragged size of a nested tensor."""
    return type(size) is torch.SymInt and size.node.is_nested_int()


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
