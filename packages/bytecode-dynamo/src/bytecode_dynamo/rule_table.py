"""Rules by key: the base of the tables of operations, types, methods and constructors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Rule = TypeVar("Rule", bound=Callable[..., Any])


class RuleTable(dict[Key, Rule]):
    """A dict whose rules are registered by decorators."""

    def register(self, *keys: Key) -> Callable[[Rule], Rule]:
        """Decorator: this is the rule for these keys. Raises ValueError for a key that has a
        rule.
        """

        def add(rule: Rule) -> Rule:
            for key in keys:
                if key in self:
                    raise ValueError(f"two rules for {key}")
                self[key] = rule
            return rule

        return add
