"""Rules by key: the base of the tables of operations, types, methods and constructors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Hashable, Sequence
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


@functools.lru_cache(maxsize=1024)
def _parameters(function: Any) -> tuple[inspect.Parameter, ...]:
    """The parameters of a callable; none if they are unknown."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return ()


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def positions_of(
    function: Any,
    rule: Callable[..., Any],
    bound: int,
    args: Sequence[Any],
    kwargs: Collection[str],
) -> list[inspect.Parameter]:
    """The parameters of a callable to pass by position after ``args``, since the rule calls one
    of them by another name. The rule's first ``bound`` parameters are not the callable's.
    """
    accepted = _parameters(rule)[bound:]
    names = {one.name for one in accepted}
    own = [one for one in accepted if one.kind in _BY_POSITION]
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted)
    given = [one for one in _parameters(function) if one.kind in _BY_POSITION]
    last = 0
    for place, one in enumerate(given):
        renamed = one.name not in names and (place < len(own) or not open_ended)
        if one.name in kwargs and renamed:
            last = place + 1
    return given[len(args) : last]


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
