"""The table that maps prims to lowering rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.fx
from primops import Prim

Rule: TypeAlias = Callable[..., object]


class LoweringTable:
    """Maps a prim's name to ``rule(ctx, node, *operands, **parameters)``. A name is registered
    once.
    """

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def register(self, *names: str) -> Callable[[Rule], Rule]:
        """A decorator that registers the rule for prims of these names."""

        def add(rule: Rule) -> Rule:
            for name in names:
                if name in self._rules:
                    raise ValueError(f"there is a lowering of {name} already")
                self._rules[name] = rule
            return rule

        return add

    def get(self, name: str) -> Rule | None:
        """The rule for the prim; None if there is none."""
        return self._rules.get(name)

    def names(self) -> frozenset[str]:
        """All prims that have a rule."""
        return frozenset(self._rules)

    def merged(self, other: LoweringTable) -> LoweringTable:
        """A new table with the rules of both tables; those of ``other`` take precedence."""
        table = LoweringTable()
        table._rules = {**self._rules, **other._rules}
        return table


def prim_name(node: torch.fx.Node) -> str:
    """The name of the prim that a node calls; empty for other nodes."""
    return node.target.name if isinstance(node.target, Prim) else ""
