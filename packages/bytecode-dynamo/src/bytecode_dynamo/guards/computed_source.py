"""Numbers that Python arithmetic makes of numbers from outside: they are computed again from where
those come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .source import ConstSource, Source, SourceEmitter, hashed_once

LARGEST = 40
"""How many steps a computation may have."""


@hashed_once
@dataclass(frozen=True)
class ComputedSource(Source):
    """``function(*operands)`` of a function without effects; generated code holds it."""

    function: Callable[..., Any]
    operands: tuple[Source, ...]

    @property
    def name(self) -> str:
        return f"{self.function.__name__}({', '.join(operand.name for operand in self.operands)})"

    @property
    def steps(self) -> int:
        """How many functions are called."""
        return 1 + sum(
            operand.steps for operand in self.operands if isinstance(operand, ComputedSource)
        )

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return self.function(
            *(operand.resolve(locals, globals, builtins, closure) for operand in self.operands)
        )

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_callee_const(self.function)
        for operand in self.operands:
            operand.emit(emitter)
        emitter.call(len(self.operands))


def computed(function: Callable[..., Any], operands: list[Source]) -> Source | None:
    """Where the result comes from; None where that takes too many steps. What constants alone make
    is one.
    """
    source = ComputedSource(function, tuple(operands))
    return (
        source
        if source.steps <= LARGEST and not all(isinstance(one, ConstSource) for one in operands)
        else None
    )
