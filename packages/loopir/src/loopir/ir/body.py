"""Loop bodies as functions of an ops handler, recorded as flat SSA and replayed from the record.

A body is written once, as a function that calls methods of an :class:`OpsHandler`. Once recorded,
it is printed, analysed, fused and turned into code by replaying it under other handlers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import sympy
import torch

from .expr import symbol
from .kernel import Instruction, Number, Value
from .ops import OPS, DtypeRule
from .peephole import known_cast, known_result

T = TypeVar("T")


def _unary(op: str) -> Callable[[OpsHandler[T], T], T]:
    return lambda self, a: self.elementwise(op, a)


def _binary(op: str) -> Callable[[OpsHandler[T], T, T], T]:
    return lambda self, a, b: self.elementwise(op, a, b)


class OpsHandler(ABC, Generic[T]):
    """A method for each operation of the vocabulary. A handler implements the abstract methods; the
    elementwise methods all call :meth:`elementwise`.
    """

    @abstractmethod
    def load(
        self,
        buffer: str,
        index: sympy.Expr,
        dtype: torch.dtype,
        mask: T | None = None,
        other: Number | None = None,
    ) -> T:
        """``buffer[index]``, or ``other`` where ``mask`` is false."""

    @abstractmethod
    def store(self, buffer: str, index: sympy.Expr, value: T, mode: str | None = None) -> None:
        """``buffer[index] = value``."""

    @abstractmethod
    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> T:
        """The value of an index expression."""

    @abstractmethod
    def indirect(self, value: T, size: sympy.Expr) -> sympy.Symbol:
        """An index symbol for ``value``, checked to be in ``[0, size)``."""

    @abstractmethod
    def constant(self, number: Number, dtype: torch.dtype) -> T:
        """A number."""

    @abstractmethod
    def convert(self, op: str, value: T, dtype: torch.dtype) -> T:
        """``cast`` or ``bitcast``."""

    @abstractmethod
    def elementwise(self, op: str, *operands: T) -> T:
        """Any operation whose result dtype follows from its operands."""

    @abstractmethod
    def collective(self, op: str, kind: str, value: T, dtype: torch.dtype | None) -> T:
        """``reduce`` or ``scan``."""

    def cast(self, a: T, dtype: torch.dtype) -> T:
        return self.convert("cast", a, dtype)

    def bitcast(self, a: T, dtype: torch.dtype) -> T:
        return self.convert("bitcast", a, dtype)

    def reduce(self, kind: str, a: T, dtype: torch.dtype) -> T:
        return self.collective("reduce", kind, a, dtype)

    def scan(self, kind: str, a: T) -> T:
        return self.collective("scan", kind, a, None)

    def uniform(self, seed: T, counter: T) -> T:
        return self.elementwise("uniform", seed, counter)

    def uniform16(self, seed: T, counter: T) -> T:
        return self.elementwise("uniform16", seed, counter)

    def where(self, condition: T, a: T, b: T) -> T:
        return self.elementwise("where", condition, a, b)

    neg = _unary("neg")
    abs = _unary("abs")
    floor = _unary("floor")
    ceil = _unary("ceil")
    trunc = _unary("trunc")
    round = _unary("round")
    exp = _unary("exp")
    expm1 = _unary("expm1")
    log = _unary("log")
    log2 = _unary("log2")
    log1p = _unary("log1p")
    sqrt = _unary("sqrt")
    rsqrt = _unary("rsqrt")
    sin = _unary("sin")
    cos = _unary("cos")
    tan = _unary("tan")
    atan = _unary("atan")
    sinh = _unary("sinh")
    cosh = _unary("cosh")
    tanh = _unary("tanh")
    erf = _unary("erf")
    lgamma = _unary("lgamma")
    not_ = _unary("not")

    add = _binary("add")
    sub = _binary("sub")
    mul = _binary("mul")
    minimum = _binary("minimum")
    maximum = _binary("maximum")
    remainder = _binary("remainder")
    fmod = _binary("fmod")
    div = _binary("div")
    pow = _binary("pow")
    atan2 = _binary("atan2")
    floordiv = _binary("floordiv")
    and_ = _binary("and")
    or_ = _binary("or")
    xor = _binary("xor")
    lshift = _binary("lshift")
    rshift = _binary("rshift")
    eq = _binary("eq")
    ne = _binary("ne")
    lt = _binary("lt")
    le = _binary("le")


class Recorder(OpsHandler[Value]):
    """Records a body as instructions. Equal pure operations are recorded once. Stores are always
    recorded; a store replaces what is known about the buffer's content by the stored value (by
    nothing for mode "add").
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.definitions: dict[str, Instruction] = {}
        self._known: dict[tuple[object, ...], Value] = {}
        self._count = 0

    def load(
        self,
        buffer: str,
        index: sympy.Expr,
        dtype: torch.dtype,
        mask: Value | None = None,
        other: Number | None = None,
    ) -> Value:
        other = None if mask is None else _canonical(other if other is not None else 0, dtype)
        return self.emit("load", (buffer, self.simplified(index), mask, other), dtype)

    def store(self, buffer: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        index = self.simplified(index)
        self.append(Instruction(None, "store", (buffer, index, value, mode), None))
        for known in self.known_values():
            for key in [key for key in known if key[0] == "load" and key[1] == buffer]:
                del known[key]
        if mode is None:
            key = self.key("load", (buffer, index, None, None), self.dtypes[value.name])
            self.known_values()[0][key] = value

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        return self.emit("index_expr", (self.simplified(sympy.sympify(expr)),), dtype)

    def indirect(self, value: Value, size: sympy.Expr) -> sympy.Symbol:
        name = self.emit("indirect", (value, sympy.sympify(size)), torch.int64).name
        return symbol(name)

    def constant(self, number: Number, dtype: torch.dtype) -> Value:
        return self.emit("constant", (_canonical(number, dtype),), dtype)

    def convert(self, op: str, value: Value, dtype: torch.dtype) -> Value:
        if self.dtypes[value.name] == dtype:
            return value
        known = known_cast(value, dtype, self.definitions) if op == "cast" else None
        return self.emit(op, (value,), dtype) if known is None else known

    def elementwise(self, op: str, *operands: Value) -> Value:
        known = known_result(op, operands, self.definitions)
        if known is not None:
            return known
        stated = {DtypeRule.BOOL: torch.bool, DtypeRule.FLOAT32: torch.float32}.get(OPS[op].rule)
        return self.emit(op, operands, stated or self.dtypes[operands[-1].name])

    def collective(self, op: str, kind: str, value: Value, dtype: torch.dtype | None) -> Value:
        return self.emit(op, (kind, value), dtype or self.dtypes[value.name])

    def emit(self, op: str, args: tuple, dtype: torch.dtype) -> Value:
        """The value of a pure operation; records it unless an equal one is already recorded."""
        key = self.key(op, args, dtype)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Value(self.new_name(op))
            self.dtypes[known.name] = dtype
            self.append(self.define(Instruction(known.name, op, args, dtype)))
        return known

    def simplified(self, index: sympy.Expr) -> sympy.Expr:
        """Simplifies ``index`` before it is recorded; a handler that knows the loops overrides
        this.
        """
        return index

    def known_values(self) -> list[dict[tuple[object, ...], Value]]:
        """Tables of values by the operation that computes them; new values go into the first."""
        return [self._known]

    def define(self, instruction: Instruction) -> Instruction:
        """Records how a result is computed."""
        self.definitions[str(instruction.result)] = instruction
        return instruction

    @staticmethod
    def key(op: str, args: tuple, dtype: torch.dtype) -> tuple[object, ...]:
        """The key by which pure operations are equal. It includes the type and sign of numbers,
        which ``==`` ignores.
        """
        if op == "load":
            return (op, *args[:2], args[2:] if args[2] is None else (args[2], repr(args[3])), dtype)
        if op == "constant":
            return (op, repr(args[0]), dtype)
        return (op, *args, dtype)

    def append(self, instruction: Instruction) -> None:
        """Appends an instruction; a handler with several bodies overrides this."""
        self.instructions.append(instruction)

    def new_name(self, op: str) -> str:
        """A new name."""
        self._count += 1
        return f"{'i' if op == 'indirect' else 'v'}{self._count - 1}"


def _canonical(number: Number, dtype: torch.dtype) -> Number:
    if dtype.is_floating_point:
        number = float(number)
        return math.nan if math.isnan(number) else number
    return bool(number) if dtype is torch.bool else int(number)


Substitution = Mapping[sympy.Symbol, sympy.Expr]


def replay(
    instructions: Iterable[Instruction],
    ops: OpsHandler[T],
    substitution: Substitution,
    values: dict[str, T] | None = None,
) -> dict[str, T]:
    """Runs recorded instructions under ``ops`` with loop symbols replaced; returns the value of
    each result name.

    ``substitution`` maps symbols to expressions; ``values`` has the values of earlier bodies by
    name, which are also returned.
    """
    values = {} if values is None else values
    symbols = dict(substitution)
    for step in instructions:
        _replay_step(step, ops, symbols, values)
    return values


def _replay_step(
    step: Instruction, ops: OpsHandler[T], symbols: dict, values: dict[str, T]
) -> None:
    args = [
        values.get(arg.name)
        if isinstance(arg, Value)
        else arg.xreplace(symbols)
        if isinstance(arg, sympy.Expr)
        else arg
        for arg in step.args
    ]
    op, name = step.op, step.result
    if op == "store":
        ops.store(*args)  # type: ignore[arg-type]
        return
    assert name is not None
    if op == "indirect":
        symbols[symbol(name)] = ops.indirect(*args)  # type: ignore[arg-type]
    elif op == "load":
        values[name] = ops.load(args[0], args[1], step.dtype, args[2], args[3])  # type: ignore[arg-type]
    elif op in ("index_expr", "constant"):
        values[name] = getattr(ops, op)(args[0], step.dtype)
    elif op in ("cast", "bitcast"):
        values[name] = ops.convert(op, args[0], step.dtype)  # type: ignore[arg-type]
    elif op in ("reduce", "scan"):
        values[name] = ops.collective(op, args[0], args[1], step.dtype)  # type: ignore[arg-type]
    else:
        values[name] = ops.elementwise(op, *args)  # type: ignore[arg-type]
