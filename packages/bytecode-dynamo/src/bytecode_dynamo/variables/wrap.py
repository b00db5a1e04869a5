"""Trackers of existing objects: a table by exact type, then MRO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.requirements import pinned_alike
from bytecode_dynamo.state.tracker import VariableTracker

Wrapper = Callable[["Context", Any, Source], VariableTracker]


class TrackerTable(RuleTable[type | str, Wrapper]):
    """Rules that wrap values, by type, or by full name for types of optional libraries."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[type, Wrapper] = {}

    def find(self, cls: type) -> Wrapper:
        """The rule of a type or of its first base that has one (``object`` always has)."""
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


def by_identity(tracker: Callable[..., VariableTracker]) -> Wrapper:
    """The rule of objects that a guard pins: ``tracker(value)``."""

    def rule(ctx: Context, value: Any, source: Source) -> VariableTracker:
        ctx.guards.require(source, GuardKind.IDENTITY, value)
        return tracker(value, source=source)

    return rule


def by_type(tracker: Callable[..., VariableTracker]) -> Wrapper:
    """The rule of mutable objects whose type is guarded: ``tracker(key)``."""

    def rule(ctx: Context, value: Any, source: Source) -> VariableTracker:
        ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
        key = Identity(type(value), value, source)
        return ctx.effects.remember(value, tracker(key, source=source))

    return rule


@protocol.wrap_value.implement
def _wrap_value(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """The tracker of an existing value; adds the guards that its type needs."""
    known = ctx.effects.find(value)
    if known is not None:
        if known.source is not None and known.source != source and not pinned_alike(known, source):
            ctx.guards.require(source, GuardKind.ALIASED, known.source)
        return known
    tracker = TRACKERS.find(type(value))(ctx, value, source)
    if tracker.identity() is tracker:
        ctx.existing[source] = value
    return tracker


def wrap_object(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """The tracker of an object known by its attributes only."""
    return TRACKERS.find(object)(ctx, value, source)
