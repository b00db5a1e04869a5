"""The table of meta rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[[Any, Any, tuple, dict[str, Any]], Any]


class RuleTable:
    """Op -> rule; registering an op twice is an error."""

    def __init__(self) -> None:
        self._rules: dict[Any, Rule] = {}
        self.get = self._rules.get  # the dispatcher's only lookup

    def register(self, *ops: Any) -> Callable[[Rule], Rule]:
        """Registers the decorated rule for ``ops``. Raises ValueError for an op that has a rule."""

        def add(rule: Rule) -> Rule:
            for op in ops:
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
