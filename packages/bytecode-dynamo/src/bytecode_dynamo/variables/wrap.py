"""From a Python object and its source to a tracker: a table by exact type, then method resolution
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.source import Source

from .base import VariableTracker

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context

Wrapper = Callable[["Context", Any, Source], VariableTracker]


class TrackerTable(RuleTable[type | str, Wrapper]):
    """What wraps values, by type; by the full name of a type of a library that need not be
    there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[type, Wrapper] = {}

    def find(self, cls: type) -> Wrapper:
        """The rule for a type: its own, or that of the first base class that has one (``object``
        always has).
        """
        rule = self._found.get(cls)
        if rule is None:
            keys = (
                key
                for base in type.mro(cls)
                for key in (base, f"{base.__module__}.{base.__qualname__}")
            )
            rule = self._found[cls] = next(self[key] for key in keys if key in self)
        return rule


TRACKERS = TrackerTable()
tracker_for = TRACKERS.register
