"""The table of known callables, by identity."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

from .rule_table import RuleTable, register_each

Rule = Callable[..., Any]


class FunctionTable:
    """Rules ``(ctx, *args, **kwargs) -> tracker`` (None for None) by callable; a duplicate
    raises.
    """

    def __init__(self) -> None:
        self._rules: dict[int, tuple[Any, Rule]] = {}
        self._overrides: dict[int, tuple[Any, Rule]] = {}

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
        if isinstance(function, types.MethodType):
            entry = self._overrides.get(method_key(function))
        else:
            entry = self._overrides.get(id(function)) or self._rules.get(id(function))
        return entry[1] if entry is not None else None

    def override(self, function: Any, rule: Rule) -> None:
        """Let a rule that a user chose come before any other."""
        self._overrides[
            method_key(function) if isinstance(function, types.MethodType) else id(function)
        ] = (function, rule)

    @property
    def has_overrides(self) -> bool:
        """Whether a user chose any rule."""
        return bool(self._overrides)

    def is_overridden(self, function: Any) -> bool:
        """Whether a user chose a rule."""
        return id(function) in self._overrides or (
            isinstance(function, types.MethodType) and method_key(function) in self._overrides
        )


def method_key(method: types.MethodType) -> int:
    """Bound methods are made anew at each access: what they bind is what lasts."""
    return hash((id(method.__func__), id(method.__self__)))


CodeRule = Callable[..., Any]
CODE_RULES: dict[types.CodeType, CodeRule] = {}
"""Rules ``(ctx, function, args, kwargs)`` for functions by their code: wrappers that a decorator
makes.
"""


def evaluates_code(*functions: Any) -> Callable[[CodeRule], CodeRule]:
    """Decorator: this rule evaluates calls of functions with the code of these functions."""

    def add(rule: CodeRule) -> CodeRule:
        for function in functions:
            CODE_RULES[function if isinstance(function, types.CodeType) else function.__code__] = (
                rule
            )
        return rule

    return add


FUNCTIONS = FunctionTable()
evaluates_call = FUNCTIONS.register
evaluates_each = partial(register_each, FUNCTIONS.register)
"""Decorator: this rule ``(ctx, function, *args, **kwargs)`` evaluates calls of these functions."""

Constructor = Callable[..., Any]
CONSTRUCTORS: RuleTable[type | str, Constructor] = RuleTable()
"""By class, or by full name for classes of optional libraries."""
constructs = CONSTRUCTORS.register
"""Decorator: this rule evaluates ``cls(*args, **kwargs)`` for these classes."""
constructs_each = partial(register_each, CONSTRUCTORS.register)
"""Decorator: this rule ``(ctx, cls, *args, **kwargs)`` evaluates calls of these classes."""
