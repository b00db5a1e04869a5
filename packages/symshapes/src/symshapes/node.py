"""SymNode: the object behind a ``torch.SymInt``, ``SymFloat`` or ``SymBool``.

torch's C++ and Python wrappers look methods up by name on any Python object, so this class
implements that duck interface over SymPy; it shares nothing with another implementation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy

from . import layout
from .environment import Environment
from .expr import (
    MATH_FUNCTIONS,
    Ceil,
    Floor,
    FloorDiv,
    Mod,
    Round,
    ToFloat,
    TrueDiv,
    Trunc,
    function_class,
    python_value,
)


def _both_float(a: SymNode, b: SymNode) -> type:
    return float if a.pytype is float or b.pytype is float else int


def _always(pytype: type) -> Callable[[SymNode, SymNode], type]:
    return lambda a, b: pytype


_DIVISIONS = frozenset([operator.floordiv, operator.mod, operator.truediv])


def _binary(
    names: str, python: Callable, symbolic: Callable, result: Callable = _both_float
) -> None:
    """Defines binary methods from Python's function on hints and SymPy's on expressions.

    A guard decides whether a divisor, or the base of a negative power, is 0: then Python raises.
    """

    def apply(self: SymNode, other: SymNode) -> SymNode:
        hint, divisor = None, None
        if python in _DIVISIONS:
            divisor = other
        elif python is operator.pow and other._hint is not None:
            is_negative = self.shape_env.decide(other.lt(self.shape_env.constant_node(0)))  # type: ignore[attr-defined]
            divisor = self if is_negative else None
        if divisor is not None and divisor._hint is not None:
            self.shape_env.decide(divisor.ne(self.shape_env.constant_node(0)))  # type: ignore[attr-defined]
        if self._hint is not None and other._hint is not None:
            hint = python(self._hint, other._hint)
        pytype = result(self, other)
        return self.shape_env.make(
            (names, self._expr, other._expr), lambda: symbolic(self.expr, other.expr), pytype, hint
        )

    for name in names.split():
        setattr(SymNode, name, apply)


def _floor_div(a: Any, b: Any) -> Any:
    return FloorDiv(a, b) if a.is_integer and b.is_integer else ToFloat(Floor(TrueDiv(a, b)))


def _mod(a: Any, b: Any) -> Any:
    return Mod(a, b) if a.is_integer and b.is_integer else a - b * Floor(TrueDiv(a, b))


def _bitwise(python: Callable, logical: Any) -> None:
    """Defines a bitwise method, which is logical on bools."""
    name = logical.__name__

    def evaluate(cls: type, a: Any, b: Any) -> Any:
        constant = a.is_Integer and b.is_Integer
        return sympy.Integer(python(int(a), int(b))) if constant else None

    bitwise = function_class(f"Bit{name}", evaluate, python, nargs=(2,), is_integer=True)

    def symbolic(a: Any, b: Any) -> Any:
        return logical(a, b) if getattr(a, "is_Boolean", False) else bitwise(a, b)

    _binary(f"bitwise_{name.lower()}", python, symbolic, lambda a, b: a.pytype)


def _has_type(pytype: type) -> Callable[[SymNode], bool]:
    return lambda self: self.pytype is pytype


def _guard(
    pytype: type, oblivious: bool = False, fallback: bool | None = None
) -> Callable[..., Any]:
    """A method that decides the node's value, as ``ShapeEnv.decide`` does."""

    def guard(self: SymNode, file: Any = "", line: int = 0) -> Any:
        return pytype(self.shape_env.decide(self, oblivious=oblivious, fallback=fallback))

    return guard


def _layout_method(
    predicate: Callable[..., bool], rank: int | None = None, result: type = bool, **options: Any
) -> Callable[[SymNode, Sequence[SymNode], Sequence[SymNode]], SymNode]:
    """A method that asks ``predicate`` about sizes and strides; False for another ``rank``."""

    def answer(self: SymNode, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        exprs = [s.expr for s in sizes], [s.expr for s in strides]
        fits = rank in (None, len(sizes))
        return self.shape_env.constant_node(
            result(fits and predicate(self.shape_env, *exprs, **options))
        )

    return answer


class SymNode:
    """An expression with its Python type and its hint (None when unbacked)."""

    __slots__ = ("__weakref__", "_expr", "_hint", "constant", "fx_node", "pytype", "shape_env")

    _optimized_summation = False

    def __init__(
        self,
        expr: Any,
        shape_env: Environment,
        pytype: type,
        hint: int | float | bool | None,
        constant: Any = None,
    ) -> None:
        self._expr = expr
        self.shape_env = shape_env
        self.pytype = pytype
        self._hint = hint
        self.constant = constant
        self.fx_node = None

    # -- what it is --------------------------------------------------------------------------------

    @property
    def expr(self) -> Any:
        """The expression after all equalities known to the environment."""
        if not self.shape_env.replacements or self._expr.is_number:
            return self._expr
        found = self.shape_env.simplify(self._expr)
        if self.pytype is float and found.is_Integer:
            return sympy.Float(found)  # SymPy's 1.0 - 1 is an integer
        return found

    @property
    def hint(self) -> int | float | bool | None:
        return self._hint

    def has_hint(self) -> bool:
        return self._hint is not None

    def require_hint(self, fallback: Any = None) -> Any:
        return self._hint if self._hint is not None else fallback

    is_int = _has_type(int)
    is_float = _has_type(float)
    is_bool = _has_type(bool)

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        # torch reads the int or bool of a constant node, but cannot read a float
        return self.constant is not None and self.pytype is not float

    def clone(self) -> SymNode:
        return self

    def with_shape_env(self, env: Environment) -> SymNode:
        return SymNode(self._expr, env, self.pytype, self._hint, self.constant)

    def _value_eq(self, other: SymNode) -> bool:
        return (
            self._expr == other._expr and self.pytype is other.pytype and self._hint == other._hint
        )

    def _value_hash(self) -> int:
        return hash((self._expr, self.pytype, self._hint))

    def str(self) -> str:
        return f"{self.expr}"

    __str__ = _graph_repr = str

    def __repr__(self) -> Any:
        return f"SymNode({self.expr}, hint={self._hint})"

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        return int(expr) if expr.is_Integer else None

    def maybe_as_float(self) -> float | None:
        expr = self.expr
        return float(expr) if expr.is_Float else None

    def maybe_as_bool(self) -> bool | None:
        value = python_value(self.expr)
        return value if isinstance(value, bool) else None

    def wrap_int(self, n: int) -> SymNode:
        return self.shape_env.constant_node(n)

    wrap_float = wrap_int

    def wrap_bool(self, b: bool) -> SymNode:
        """A bool among numbers is an int, as in Python. Only torch 2.11 still passes a bool."""
        return self.shape_env.constant_node(b if self.pytype is bool else int(b))

    # -- decisions ---------------------------------------------------------------------------------

    guard_int, guard_float, guard_bool = _guard(int), _guard(float), _guard(bool)
    int_, bool_ = guard_int, guard_bool
    guard_size_oblivious = _guard(bool, oblivious=True)
    guard_or_false = _guard(bool, fallback=False)
    guard_or_true = _guard(bool, fallback=True)

    def evaluate(self, size_oblivious: bool = False) -> Any:
        return self.shape_env.decide(self, oblivious=size_oblivious)

    def statically_known_true(self, file: Any = "", line: int = 0) -> bool:
        return self.shape_env.statically_known(self.expr) is True

    def expect_true(self, file: Any = "", line: int = 0) -> bool:
        return self.shape_env.expect_true(self)

    # -- arithmetic --------------------------------------------------------------------------------

    def _unary(self, name: Any, python: Callable, symbolic: Callable, pytype: type) -> SymNode:
        hint = None if self._hint is None else python(self._hint)
        return self.shape_env.make((name, self._expr), lambda: symbolic(self.expr), pytype, hint)

    def neg(self) -> SymNode:
        return self._unary("neg", operator.neg, operator.neg, self.pytype)

    def pos(self) -> SymNode:
        return self

    def abs(self) -> SymNode:
        # a guard on the sign: graphs and kernels cannot express it
        if self.pytype is int and self._hint is not None:
            return self if self.ge(self.wrap_int(0)).guard_bool() else self.neg()  # type: ignore[attr-defined]
        if self.pytype is int:
            return self.sym_max(self.neg())
        return self._unary("abs", abs, sympy.Abs, float)

    def sym_not(self) -> SymNode:
        return self._unary("not", operator.not_, sympy.Not, bool)

    def sym_float(self) -> SymNode:
        if self.pytype is bool:
            return self.shape_env.constant_node(float(self.guard_bool()))
        return self if self.pytype is float else self._unary("float", float, ToFloat, float)

    def sym_int(self) -> SymNode:
        if self.pytype is bool:
            return self.shape_env.constant_node(int(self.guard_bool()))
        return self if self.pytype is int else self._unary("int", math.trunc, Trunc, int)

    trunc = sym_int

    def floor(self) -> SymNode:
        return self if self.pytype is int else self._unary("floor", math.floor, Floor, int)

    def ceil(self) -> SymNode:
        return self if self.pytype is int else self._unary("ceil", math.ceil, Ceil, int)

    def round(self, ndigits: int | None = None) -> SymNode:
        if self.pytype is int and (ndigits is None or ndigits >= 0):
            return self
        if ndigits is None:
            return self._unary("round", round, Round, int)
        value = round(self.guard_float(), ndigits)
        return self.shape_env.constant_node(value)

    def is_integer(self) -> SymNode:
        if self.pytype is int:
            return self.shape_env.constant_node(True)
        return self.floor().sym_float().eq(self)  # type: ignore[attr-defined]

    def sym_max(self, other: SymNode) -> SymNode:
        return self._larger(other) or self._max(other)  # type: ignore[attr-defined]

    def sym_min(self, other: SymNode) -> SymNode:
        larger = self._larger(other)
        return (other if larger is self else self) if larger else self._min(other)  # type: ignore[attr-defined]

    def _larger(self, other: SymNode) -> SymNode | None:
        """The operand that is at least the other for all admissible sizes, if one is."""
        if self.pytype is not int or other.pytype is not int:
            return None
        known = self.shape_env.statically_known
        if known(sympy.Ge(self.expr, other.expr)) is True:
            return self
        return other if known(sympy.Le(self.expr, other.expr)) is True else None

    def sym_ite(self, then: SymNode, other: SymNode) -> SymNode:
        hint = None if self._hint is None else (then._hint if self._hint else other._hint)
        key = ("ite", self._expr, then._expr, other._expr)
        return self.shape_env.make(
            key,
            lambda: sympy.Piecewise((then.expr, self.expr), (other.expr, True)),
            then.pytype,
            hint,
        )

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        total: Any = args[0]
        for node in args[1:]:
            total = total.add(node)
        return total

    # -- layout predicates that C++ calls ----------------------------------------------------------

    is_contiguous = _layout_method(layout.is_contiguous)
    is_channels_last_contiguous_2d = _layout_method(layout.is_contiguous, 4, channels_last=True)
    is_channels_last_contiguous_3d = _layout_method(layout.is_contiguous, 5, channels_last=True)
    is_channels_last_strides_2d = _layout_method(layout.is_channels_last_strides, 4)
    is_channels_last_strides_3d = _layout_method(layout.is_channels_last_strides, 5)
    is_non_overlapping_and_dense = _layout_method(layout.is_dense)
    is_non_overlapping_and_dense_indicator = _layout_method(layout.is_dense, result=int)


def _math_method(name: str) -> Callable[[SymNode], SymNode]:
    function, symbolic = getattr(math, name), MATH_FUNCTIONS[name]

    def apply(self: SymNode) -> SymNode:
        return self._unary(name, function, symbolic, float)

    return apply


_binary("add", operator.add, operator.add)
_binary("sub", operator.sub, operator.sub)
_binary("mul", operator.mul, operator.mul)
_binary("floordiv", operator.floordiv, _floor_div)
_binary("int_floordiv", operator.floordiv, FloorDiv)
_binary("mod", operator.mod, _mod)
_binary("truediv int_truediv float_truediv", operator.truediv, TrueDiv, _always(float))
_binary("pow pow_by_natural", operator.pow, operator.pow)
_binary("float_pow", operator.pow, operator.pow, _always(float))
_binary("lshift", operator.lshift, lambda a, b: a * 2**b)
_binary("rshift", operator.rshift, lambda a, b: FloorDiv(a, 2**b))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _binary(_name, getattr(operator, _name), getattr(sympy, _name.capitalize()), _always(bool))
_binary("_max", max, sympy.Max)
_binary("_min", min, sympy.Min)
_binary("and_ sym_and", lambda a, b: a and b, sympy.And, _always(bool))
_binary("or_ sym_or", lambda a, b: a or b, sympy.Or, _always(bool))
_bitwise(operator.and_, sympy.And)
_bitwise(operator.or_, sympy.Or)
_bitwise(operator.xor, sympy.Xor)
for _name in MATH_FUNCTIONS:
    setattr(SymNode, f"sym_{_name}", _math_method(_name))
