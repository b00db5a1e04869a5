"""The table of meta rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

Rule = Callable[[Any, Any, tuple, dict[str, Any]], Any]
AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])


def op_of(name: str) -> Any:
    """The op of ``aten`` with that name, such as ``mm`` or ``add.Tensor``."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@lru_cache(maxsize=10_000)
def _defaults(func: Any) -> dict[str, Any]:
    return {a.name: a.default_value for a in func._schema.arguments}


def bind(func: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, defaults included."""
    defaults = _defaults(func)
    return {**defaults, **dict(zip(defaults, args)), **kwargs}


class RuleTable:
    """Op -> rule; registering an op twice is an error."""

    def __init__(self) -> None:
        self._rules: dict[Any, Callable[..., Any]] = {}
        self.get = self._rules.get  # the dispatcher's only lookup

    def register(self, *ops: Any) -> Callable[[AnyRule], AnyRule]:
        """Registers a rule for ops or space-separated names; ValueError if one has a rule."""

        def add(rule: AnyRule) -> AnyRule:
            for given in ops:
                for op in map(op_of, given.split()) if isinstance(given, str) else (given,):
                    if op in self._rules:
                        raise ValueError(f"{op} already has a rule")
                    self._rules[op] = rule
            return rule

        return add

    def __contains__(self, op: Any) -> bool:
        return op in self._rules

    def __len__(self) -> int:
        return len(self._rules)

    @classmethod
    def merged(cls, *tables: RuleTable) -> RuleTable:
        """One table of all rules. Raises ValueError when two tables share an op."""
        out = cls()
        for table in tables:
            for op, rule in table._rules.items():
                out.register(op)(rule)
        return out
