"""Numbers that Python arithmetic computes from inputs; guards compute them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .source import ConstSource, Scope, Source, SourceEmitter, hashed_once

SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^",
}  # fmt: skip
MAX_CALLS = 40
"""The most function calls in one computed source."""


@hashed_once
@dataclass(frozen=True)
class ComputedSource(Source):
    """``function(*operands)`` for a function without side effects; generated code refers to it."""

    function: Callable[..., Any]
    operands: tuple[Source, ...]

    @property
    def name(self) -> str:
        return f"{self.function.__name__}({', '.join(operand.name for operand in self.operands)})"

    @property
    def shown(self) -> str:
        shown = [operand.shown for operand in self.operands]
        sign = SIGNS.get(self.function.__name__)
        if sign is not None and len(shown) == 2:
            return f"({shown[0]} {sign} {shown[1]})"
        return f"{self.function.__name__}({', '.join(shown)})"

    @property
    def calls(self) -> int:
        """The number of function calls."""
        return 1 + sum(
            operand.calls for operand in self.operands if isinstance(operand, ComputedSource)
        )

    @property
    def runs_program(self) -> bool:
        return getattr(self.function, "runs_program", False)

    def resolve(self, scope: Scope) -> Any:
        known = {} if scope.computed is None else scope.computed
        if self not in known:
            known[self] = self.function(*(operand.resolve(scope) for operand in self.operands))
        return known[self]

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_callee_const(self.function)
        for operand in self.operands:
            operand.emit(emitter)
        emitter.call(len(self.operands))


def computed(function: Callable[..., Any], operands: list[Source]) -> Source | None:
    """The source of the result; None if it takes too many calls or all operands are constants."""
    source = ComputedSource(function, tuple(operands))
    constant = all(isinstance(operand, ConstSource) for operand in operands)
    return None if constant or source.calls > MAX_CALLS else source
