"""Elementwise operations as C++ expressions: the same text serves scalars and vectors, by
overloading in the runtime header.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .dtypes import c_type

Rule = Callable[[list[str], torch.dtype | None], str]


def _call(name: str) -> Rule:
    return lambda args, dtype: f"{name}({', '.join(args)})"


def _infix(operator: str) -> Rule:
    return lambda args, dtype: f"({args[0]} {operator} {args[1]})"


def _not(args: list[str], dtype: torch.dtype | None) -> str:
    return f"logical_not({args[0]})" if dtype is torch.bool else f"(~{args[0]})"


INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
EXPRESSIONS: dict[str, Rule] = {
    # the operand may be a negative literal, and -- is another operator
    "neg": lambda args, dtype: f"(- {args[0]})",
    "not": _not,
    **{name: _call(f"{name}_of") for name in (
        "abs", "floor", "ceil", "trunc", "round", "exp", "expm1", "log", "log2", "log1p", "sqrt",
        "rsqrt", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "lgamma", "pow", "atan2",
    )},
    **{name: _infix(operator) for name, operator in INFIX.items()},
    **{name: _call(name) for name in ("minimum", "maximum", "floordiv", "lshift", "rshift", "eq",
    "ne", "lt", "le", "where")},
    "remainder": _call("remainder_of"),
    "fmod": _call("fmod_of"),
    "cast": lambda args, dtype: f"cast<{c_type(dtype)}>({args[0]})",
    "bitcast": lambda args, dtype: f"bitcast<{c_type(dtype)}>({args[0]})",
}  # fmt: skip
"""Operation name to text of (operands' text, result dtype). ``memory``, ``collective`` and
``instructions`` have the others.
"""


def expression(op: str, args: list[str], dtype: torch.dtype | None) -> str:
    """The expression of an elementwise ``op``; raises NotImplementedError for an unknown one."""
    if op not in EXPRESSIONS:
        raise NotImplementedError(f"the C++ generator has no rule for the operation {op!r}")
    return EXPRESSIONS[op](args, dtype)
