"""Symbolic sizes for tests, on the least that ``torch.SymInt`` needs: arithmetic over SymPy, a
hint, and no guards.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch

RULES: dict[str, Any] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": sympy.Mod, "eq": sympy.Eq,
    "ne": sympy.Ne,
    "le": sympy.Le, "lt": sympy.Lt, "ge": sympy.Ge, "gt": sympy.Gt, "sym_min": sympy.Min,
    "sym_max": sympy.Max,
    "neg": operator.neg, "int_floordiv": lambda a, b: sympy.floor(a / b),
}  # fmt: skip


class Node:
    """What stands behind a ``SymInt``. A comparison whose answer is not known raises: no rule may
    guard.
    """

    def __init__(self, expr: Any, hint: int | None) -> None:
        """``expr`` over SymPy, with its value in the example."""
        self.expr, self.hint = sympy.sympify(expr), hint

    def is_int(self) -> bool:
        """Every node is an integer, also those of comparisons."""
        return True

    is_symbolic = is_int

    def is_float(self) -> bool:
        """Never."""
        return False

    is_bool = is_nested_int = is_constant = is_float

    def wrap_int(self, number: int) -> Node:
        """A number as a node."""
        return Node(number, number)

    def statically_known_true(self, file: str, line: int) -> bool:
        """Whether SymPy knows it."""
        return self.expr == sympy.true

    def guard_int(self, file: str, line: int) -> int:
        """Raises AssertionError unless the node is a number."""
        if not self.expr.is_Integer:
            raise AssertionError(f"guard on {self.expr}")
        return int(self.expr)

    def str(self) -> str:
        """The expression."""
        return f"{self.expr}"

    __repr__ = _graph_repr = str

    def int_(self) -> int:
        """See ``guard_int``."""
        return self.guard_int("", 0)

    def __getattr__(self, name: str) -> Any:
        if name not in RULES:
            raise AttributeError(name)

        def apply(*others: Node) -> Node:
            hints = [node.hint for node in (self, *others)]
            found = None if None in hints else RULES[name](*map(sympy.Integer, hints))
            hint = (
                found
                if found is None
                else int(bool(found))
                if found in (True, False)
                else int(found)
            )
            return Node(RULES[name](self.expr, *(other.expr for other in others)), hint)

        return apply


def symbolic_size(name: str, hint: int | None) -> torch.SymInt:
    """A positive symbol, whose value in the example is ``hint``."""
    return torch.SymInt(Node(sympy.Symbol(name, integer=True, positive=True), hint))
