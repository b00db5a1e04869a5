"""Symbolic numbers as generated code: computed again from where their symbols come from."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from .graph import size_operation

if TYPE_CHECKING:
    from .codegen import Codegen

_PYTHON_FORMS: dict[Any, Any] = {
    torch.sym_max: max, torch.sym_min: min, torch.sym_int: int, torch.sym_float: float,
    torch.sym_not: operator.not_,
}  # fmt: skip


def load_expression(gen: Codegen, expr: Any) -> None:
    """Push the value of an expression."""
    if expr.is_Symbol:
        gen.emitter.load_fast(gen.number(expr))
    elif expr.is_Integer:
        gen.load_const(int(expr))
    elif expr.is_number:
        gen.load_const(float(expr))
    elif expr.is_Boolean and not expr.args:  # settled since it was computed
        gen.load_const(bool(expr))
    else:
        target, operands = size_operation(expr)
        function = _PYTHON_FORMS.get(target, target)
        for _ in operands[1:] or operands:
            gen.emitter.load_callee_const(function)
        load_expression(gen, operands[0])
        if len(operands) == 1:
            gen.emitter.call(1)
        for operand in operands[1:]:
            load_expression(gen, operand)
            gen.emitter.call(2)
