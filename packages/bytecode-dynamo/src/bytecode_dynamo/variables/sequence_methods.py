"""Methods of lists, tuples and deques; sorting."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    constant_of,
    is_alike,
    is_less,
    new_list,
    raise_error,
    raising,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Kwargs, no_keywords, realize, runs_program
from .constant import ConstantVariable
from .sequence import DEQUE_METHODS, LIST_METHODS, SEQUENCE_METHODS, ListVariable, SequenceVariable
from .wording import not_found


@SEQUENCE_METHODS.register("count")
def sequence_count(ctx: Context, self: SequenceVariable, item: VariableTracker) -> VariableTracker:
    return ConstantVariable(sum(is_alike(ctx, element, item) for element in self.unpack(ctx)))


@SEQUENCE_METHODS.register("index")
def sequence_index(
    ctx: Context, self: SequenceVariable, item: VariableTracker, *bounds: VariableTracker
) -> VariableTracker:
    low, high, _ = slice(*(bound.as_constant(ctx) for bound in bounds),
        *(() if len(bounds) > 1 else (None,))).indices(
        len(self.elements(ctx))
    ) if bounds else (0, len(self.elements(ctx)), 1)  # fmt: skip
    for index, element in enumerate(self.unpack(ctx)[low:high]):
        if is_alike(ctx, element, item):
            return ConstantVariable(low + index)
    return raise_error(ctx, ValueError, not_found(self.python_type(), "index", item.describe()))


# Methods that only move items run on the trackers: "i" is an item, "s" an iterable, "n" a number.
_MOVING = {
    "append": "i", "appendleft": "i", "extend": "s", "extendleft": "s", "insert": "ni", "pop": "n",
    "popleft": "",
    "rotate": "n", "clear": "", "reverse": "",
}  # fmt: skip


_ONE = {"extend": "append", "extendleft": "appendleft"}
"""What a method does with each item of an iterable: the program's code that makes the items sees
those that were added before.
"""


def _moving(name: str) -> Callable[..., VariableTracker | None]:
    def rule(ctx: Context, self: ListVariable, *args: VariableTracker) -> VariableTracker | None:
        base = self.key.cls
        if name in _ONE and len(args) == 1 and runs_program(args[0]):
            for item in args[0].each(ctx):
                _moving(_ONE[name])(ctx, self, item)
            return None
        kinds = _MOVING[name].ljust(len(args), "i")
        given = [_argument(ctx, arg, kind) for arg, kind in zip(args, kinds)]
        items = self.native(self.elements(ctx))
        with raising(ctx, IndexError, TypeError):
            result = getattr(base, name)(items, *given)
        self.replace(ctx, items, moved=name != "reverse" and given != [[]])
        return result if result is None else realize(ctx, result)

    return rule


def _argument(ctx: Context, value: VariableTracker, kind: str) -> Any:
    if kind == "i":
        return value
    return value.unpack(ctx) if kind == "s" else constant_of(ctx, value, "an index")


for _name in _MOVING:
    LIST_METHODS.register(_name)(_moving(_name)) if hasattr(list, _name) else None


list_append, list_extend = (LIST_METHODS[name] for name in ("append", "extend"))


@LIST_METHODS.register("remove")
def list_remove(ctx: Context, self: ListVariable, item: VariableTracker) -> None:
    items = list(self.elements(ctx))
    for index, element in enumerate(items):
        if is_alike(ctx, realize(ctx, element), item):
            del items[index]
            self.replace(ctx, items)
            return
    raise_error(ctx, ValueError, not_found(self.key.cls, "remove", item.describe()))


LIST_METHODS.register("copy", "__copy__")(
    lambda ctx, self: new_list(ctx, self.elements(ctx), self.key.cls, self.maxlen)
)


LIST_METHODS.register("sort")(
    lambda ctx, self, **options: self.replace(ctx, sort_items(ctx, self.unpack(ctx), options))
)


for _name in _MOVING:
    if hasattr(collections.deque, _name):
        DEQUE_METHODS.register(_name)(_moving(_name))


class Comparable:
    """A tracker compared by the program's own ``<``."""

    __slots__ = ("ctx", "value")

    def __init__(self, ctx: Context, value: VariableTracker) -> None:
        self.ctx, self.value = ctx, value

    def __lt__(self, other: Comparable) -> bool:
        return is_less(self.ctx, self.value, other.value)


def sort_items(
    ctx: Context, items: list[VariableTracker], options: Kwargs
) -> list[VariableTracker]:
    """Sort by keys, compared by the program's own ``<``."""
    no_keywords(
        {name: value for name, value in options.items() if name not in ("key", "reverse")}, "sort"
    )
    key = options.get("key")
    reverse = "reverse" in options and options["reverse"].truth(ctx)
    by: Callable[[VariableTracker], VariableTracker] = lambda item: item  # noqa: E731
    if key is not None and not key.is_none:
        by = lambda item: key.call(ctx, [item], {})  # noqa: E731
    keys = [Comparable(ctx, by(item)) for item in items]
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    return [items[index] for index in order]
