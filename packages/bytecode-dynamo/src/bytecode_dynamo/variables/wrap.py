"""From a Python object and its source to a tracker: a table by exact type, then method resolution order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.source import Source

from .base import VariableTracker

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

Wrapper = Callable[["Context", Any, Source], VariableTracker]


class TrackerTable:
    """Wrap rules by type; a duplicate raises."""

    def __init__(self) -> None:
        self._rules: dict[type, Wrapper] = {}
        self._found: dict[type, Wrapper] = {}

    def register(self, *types: type) -> Callable[[Wrapper], Wrapper]:
        """Decorator: this function wraps values of these types."""

        def add(rule: Wrapper) -> Wrapper:
            for cls in types:
                if cls in self._rules:
                    raise ValueError(f"two trackers for {cls}")
                self._rules[cls] = rule
            return rule

        return add

    def find(self, cls: type) -> Wrapper:
        """The rule for a type: its own, or that of the first base class that has one (``object`` always has)."""
        rule = self._found.get(cls)
        if rule is None:
            rule = self._found[cls] = next(self._rules[base] for base in type.mro(cls) if base in self._rules)
        return rule


TRACKERS = TrackerTable()
tracker_for = TRACKERS.register
