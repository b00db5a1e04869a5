"""The table of known callables, by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bytecode_dynamo.variables.base import VariableTracker

Rule = Callable[..., "VariableTracker | None"]


class FunctionTable:
    """Rules ``(ctx, *args, **kwargs) -> tracker`` (None for None) by callable; a duplicate raises."""

    def __init__(self) -> None:
        self._rules: dict[int, tuple[Any, Rule]] = {}

    def register(self, *functions: Any) -> Callable[[Rule], Rule]:
        """Decorator: this rule evaluates calls of these functions."""

        def add(rule: Rule) -> Rule:
            for function in functions:
                if id(function) in self._rules:
                    raise ValueError(f"two rules for {function}")
                self._rules[id(function)] = (function, rule)
            return rule

        return add

    def find(self, function: Any) -> Rule | None:
        """The rule of a callable."""
        entry = self._rules.get(id(function))
        return entry[1] if entry is not None else None


FUNCTIONS = FunctionTable()
evaluates_call = FUNCTIONS.register
