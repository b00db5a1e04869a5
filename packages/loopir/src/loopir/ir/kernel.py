"""Kernels and their parts: the input of a code generator (contract C4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy
import torch

Number: TypeAlias = int | float | bool


STORED_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Float dtypes that kernels on CUDA devices load, store and convert; on other devices such
conversions are extern calls.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A reference to the result of an earlier instruction."""

    name: str

    def __str__(self) -> str:
        return self.name


Operand: TypeAlias = Value | Number | str | sympy.Expr | torch.dtype | None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SSA step. ``args`` by operation (``Value`` operands first unless said otherwise):

    ``load(buffer: str, index: Expr, mask: Value | None, other: Number | None)`` ·
    ``store(buffer: str, index: Expr, value, mode: str | None)`` · ``index_expr(expr)`` ·
    ``indirect(value, size: Expr)``, whose result name is an index symbol · ``constant(number)`` ·
    ``cast(value)`` · ``bitcast(value)`` · elementwise ``op(value, ...)`` ·
    ``uniform(seed, counter)`` · ``reduce(kind: str, value)`` · ``scan(kind: str, value)``.
    The result dtype of load/index_expr/constant/cast/bitcast/reduce is ``dtype``; None only for
    store; int64 for indirect.
    """

    result: str | None
    op: str
    args: tuple[Operand, ...]
    dtype: torch.dtype | None

    @property
    def is_access(self) -> bool:
        """Whether the instruction accesses memory; the buffer is ``args[0]``."""
        return self.op in ("load", "store")

    @property
    def is_add(self) -> bool:
        """Whether the instruction adds to a value in memory."""
        return self.op == "store" and self.args[3] == "add"

    @property
    def expressions(self) -> tuple[sympy.Expr, ...]:
        """The indices and sizes among the operands."""
        return tuple(arg for arg in self.args if isinstance(arg, sympy.Expr))

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the operands that are values and of the symbols in expressions (an indirect
        symbol is also a value).
        """
        names = (arg.name for arg in self.args if isinstance(arg, Value))
        return (
            *names,
            *sorted(symbol.name for expr in self.expressions for symbol in expr.free_symbols),  # type: ignore[attr-defined]
        )


@dataclass(frozen=True, slots=True)
class Body:
    """Instructions that run once per point of ``ranges`` (``inner=False``) or of ``ranges`` x
    ``reduction``.
    """

    inner: bool
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """An iteration symbol running over ``0 <= symbol < extent``."""

    symbol: sympy.Symbol
    extent: sympy.Expr


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """A tensor argument. ``role`` is ``"in"``, ``"out"`` (written, and not read before that) or
    ``"inout"``; ``numel`` is the storage span in elements.
    """

    name: str
    dtype: torch.dtype
    role: str
    numel: sympy.Expr


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused loop nest.

    ``ranges`` are ordered outermost first, and the last one has the most unit-stride accesses; the
    same holds for ``reduction``. ``vector_axis`` names the iteration symbol to vectorise (None: a
    scalar kernel). ``tile_axis`` names the range along which accesses are contiguous that are
    strided along the vector axis; the two are tiled together. ``hints`` maps size symbols to
    example values; ``origins`` are (graph node name, user line) pairs.
    """

    name: str
    device: str
    buffers: tuple[KernelBuffer, ...]
    sizes: tuple[sympy.Symbol, ...]
    ranges: tuple[Range, ...]
    reduction: tuple[Range, ...]
    bodies: tuple[Body, ...]
    vector_axis: sympy.Symbol | None = None
    hints: tuple[tuple[sympy.Symbol, int], ...] = ()
    origins: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    tile_axis: sympy.Symbol | None = None

    @property
    def steps(self) -> list[Instruction]:
        """The instructions of all bodies, in order."""
        return steps_of(self.bodies)

    @property
    def ops(self) -> set[str]:
        """The operations of all bodies."""
        return {step.op for step in self.steps}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The buffers' dtypes by name."""
        return {buffer.name: buffer.dtype for buffer in self.buffers}


def steps_of(bodies: Iterable[Body]) -> list[Instruction]:
    """The instructions of ``bodies``, in order."""
    return [step for body in bodies for step in body.instructions]


def map_steps(
    change: Callable[[Instruction], Instruction], bodies: Iterable[Body]
) -> tuple[Body, ...]:
    """Applies ``change`` to each instruction of ``bodies``."""
    return tuple(Body(body.inner, tuple(map(change, body.instructions))) for body in bodies)


def accessed(steps: Iterable[Instruction], *ops: str) -> set[str]:
    """The buffers that ``steps`` load or store, or only those accessed by ``ops``."""
    return {str(step.args[0]) for step in steps if step.op in (ops or ("load", "store"))}


def definitions(steps: Iterable[Instruction]) -> dict[str, Instruction]:
    """Maps each value to the instruction that computes it."""
    return {step.result: step for step in steps if step.result is not None}
