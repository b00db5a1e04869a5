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


class RuleTable(dict[Any, Callable[..., Any]]):
    """Op -> rule; registering an op twice is an error."""

    def register(self, *ops: Any) -> Callable[[AnyRule], AnyRule]:
        """Registers a rule for ops or space-separated names; ValueError if one has a rule."""

        def add(rule: AnyRule) -> AnyRule:
            for given in ops:
                for op in map(op_of, given.split()) if isinstance(given, str) else (given,):
                    if op in self:
                        raise ValueError(f"{op} already has a rule")
                    self[op] = rule
            return rule

        return add


RULES = RuleTable()
