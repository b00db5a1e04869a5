"""Rules by key: the base of the tables of operations, types, methods and constructors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RuleFor:
    """A rule of several keys, bound to one of them."""

    rule: Callable[..., Any]
    key: Any

    def __call__(self, ctx: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.rule(ctx, self.key, *args, **kwargs)


def register_each(register: Callable[..., Any], *keys: Any) -> Callable[[Rule], Rule]:
    """Decorator: this is the rule for these keys, and receives the key after ``ctx``."""

    def add(rule: Rule) -> Rule:
        for key in keys:
            register(key)(RuleFor(rule, key))
        return rule

    return add


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
