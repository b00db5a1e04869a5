"""``SizeGuard``: a condition on sizes with the user line that needs it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import sympy
from sympy.printing.str import StrPrinter

from .expr import substitute

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """A boolean expression over size symbols that must hold for the recorded program to be valid.

    ``provenance`` is the user's line that needed it.
    """

    expr: Any
    provenance: str = ""

    def holds(self, values: Mapping[sympy.Symbol, int | float]) -> bool:
        """Whether the guard is true of new sizes. Raises KeyError when a symbol has no value."""
        try:
            return bool(substitute(self.expr, values))
        except ZeroDivisionError:
            return False

    def __str__(self) -> str:
        return f"{self.expr}  # {self.provenance}" if self.provenance else str(self.expr)


class PythonPrinter(StrPrinter):
    """Prints guards as Python source over ints; float functions need ``math`` in scope."""

    def __init__(self, names: Mapping[sympy.Symbol, str]) -> None:
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr: Any) -> str:
        return self._names.get(expr, expr.name)

    def _print_Float(self, expr: Any) -> str:
        return repr(float(expr))

    def _print_Relational(self, expr: Any) -> str:
        return f"({self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)})"

    def _print_And(self, expr: Any) -> str:
        return "(" + " and ".join(self._print(a) for a in expr.args) + ")"

    def _print_Or(self, expr: Any) -> str:
        return "(" + " or ".join(self._print(a) for a in expr.args) + ")"

    def _print_Not(self, expr: Any) -> str:
        return f"(not {self._print(expr.args[0])})"

    def _call(self, name: str, expr: Any) -> str:
        return f"{name}({', '.join(self._print(a) for a in expr.args)})"

    def _print_Piecewise(self, expr: Any) -> str:
        (value, condition), (other, _) = expr.args
        return f"({self._print(value)} if {self._print(condition)} else {self._print(other)})"

    def _print_Function(self, expr: Any) -> str:
        name = expr.func.__name__
        return self._call(f"math.{name[5:].lower()}" if name.startswith("Float") else name, expr)

    _print_Max = partialmethod(_call, "max")
    _print_Min = partialmethod(_call, "min")
    _print_Abs = partialmethod(_call, "abs")
    _print_ToFloat = partialmethod(_call, "float")
    _print_Trunc = partialmethod(_call, "int")
    _print_Round = partialmethod(_call, "round")
    _print_Floor = partialmethod(_call, "math.floor")
    _print_Ceil = partialmethod(_call, "math.ceil")


def python_text(expr: Any, names: Mapping[sympy.Symbol, str] | None = None) -> str:
    """``expr`` as Python source; ``names`` renames symbols."""
    return PythonPrinter(names or {}).doprint(expr)


def current_user_line(skip: Callable[[str], bool] | None = None) -> str:
    """``File "...", line N, in name: source`` of the innermost user frame, or ''.

    Frames of this package, of torch and of files for which ``skip`` is true are left out.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if (
            not path.startswith(_HERE)
            and "/torch/" not in path
            and not path.startswith("<")
            and not (skip and skip(path))
        ):
            text = linecache.getline(path, frame.f_lineno).strip()
            return f'File "{path}", line {frame.f_lineno}, in {frame.f_code.co_name}' + (
                f": {text}" if text else ""
            )
        frame = frame.f_back
    return ""
