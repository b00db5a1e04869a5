"""Results that a cache holds for arguments with symbolic sizes: lists, tuples and dicts of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.builder import size_operation
from bytecode_dynamo.guards.computed_source import ComputedSource
from bytecode_dynamo.guards.source import ConstSource, ItemSource, Source
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.tracker import VariableTracker

from .base import realize
from .cache_lookup import NOT_CACHED, CacheLookup, call_cached, count_early
from .constant import ConstantVariable, FloatVariable, SymbolicVariable
from .mapping import DictVariable
from .sequence import ListVariable, TupleVariable

_PLAIN = (int, float, bool, str, type(None))
DEEPEST = 8
"""The deepest nesting of a result."""


@dataclass(frozen=True)
class CacheAgrees:
    """``agrees(cached, *arguments)``: whether the cache holds nothing for a call, or what the
    function gives now.
    """

    runs_program: ClassVar[bool] = True
    names: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return "cache_agrees"

    def __call__(self, cached: Any, *arguments: Any) -> bool:
        held = CacheLookup(self.names)(cached, *arguments)
        if held is NOT_CACHED:
            return True
        try:
            made = call_cached(cached.__wrapped__, self.names, arguments)
        except Exception:
            return False
        return _are_equal(held, made)


@dataclass(frozen=True)
class CacheFetch:
    """``fetch(cached, *arguments)``: the object that the cache holds, computed if it holds none."""

    names: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return "cached"

    def __call__(self, cached: Any, *arguments: Any) -> Any:
        held = CacheLookup(self.names)(cached, *arguments)
        if held is NOT_CACHED:
            held = call_cached(cached, self.names, arguments)
            count_early(cached, self.names, arguments)
        return held


def _are_equal(one: Any, other: Any) -> bool:
    """Whether nested tuples, lists and dicts hold equal plain values of the same types."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return _are_equal([*one.items()], [*other.items()])
    if type(one) in (tuple, list, torch.Size):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return type(one) in _PLAIN and (one == other or (one != one and other != other))


def is_tree(ctx: Context, value: VariableTracker, depth: int = DEEPEST) -> bool:
    """Whether a value is plain or symbolic, or a tuple, list or dict of such."""
    value = realize(ctx, value)
    fits = partial(is_tree, ctx, depth=depth - 1)
    if isinstance(value, TupleVariable):
        return depth > 0 and value.cls in (tuple, torch.Size) and all(map(fits, value.items))
    if isinstance(value, ListVariable):
        return depth > 0 and value.key.cls is list and all(map(fits, value.elements(ctx)))
    if isinstance(value, DictVariable):
        entries = value.entries(ctx).values()
        names_are_known = all(isinstance(key, ConstantVariable) for key, _ in entries)
        is_dict = value.key.cls is dict and names_are_known
        return depth > 0 and is_dict and all(fits(held) for _, held in entries)
    return is_plain(value)


def is_plain(value: VariableTracker) -> bool:
    """Whether a value is a number, a text or None, symbolic or not."""
    return value.python_type() in _PLAIN


def as_existing(
    ctx: Context, result: VariableTracker, held: Any, source: Source
) -> VariableTracker:
    """A computed result as the object that the cache holds: ``held`` now, ``source`` later."""
    result = realize(ctx, result)
    if not isinstance(result, (TupleVariable, ListVariable, DictVariable)):
        return result
    if isinstance(result, TupleVariable):
        items = _existing_items(ctx, result.items, held, source)
        return TupleVariable(items, result.cls, source=source)
    if result.key.value is held:  # an object that the function found elsewhere
        return result
    known = ctx.effects.find(held)
    if known is not None and known.source is not None and known.source.name == source.name:
        return known
    if result.key.exists or known is not None:
        raise GraphBreak("BD002", "a cached result that two places hold, with symbolic sizes")
    identity = Identity(type(held), held, source)
    found: VariableTracker
    if isinstance(result, ListVariable):
        items = _existing_items(ctx, result.elements(ctx), held, source)
        ctx.effects.set_initial(identity, items)
        found = ListVariable(identity, source=source)
    else:
        entries = {
            hashed: (name, as_existing(ctx, value, held[key], ItemSource(source, key)))
            for hashed, (name, value) in result.entries(ctx).items()
            for key in [name.as_constant(ctx)]
        }
        ctx.effects.set_initial(identity, entries)
        found = DictVariable(identity, source=source)
    return ctx.effects.remember(held, found)


def _existing_items(
    ctx: Context, items: tuple[VariableTracker, ...], held: Any, source: Source
) -> tuple[VariableTracker, ...]:
    return tuple(
        as_existing(ctx, item, part, ItemSource(source, place))
        for place, (item, part) in enumerate(zip(items, held, strict=True))
    )


def symbolic_argument(ctx: Context, arg: VariableTracker) -> tuple[Any, Source] | None:
    """The number behind a symbolic argument now, and its source; None for another argument."""
    if isinstance(arg, SymbolicVariable) and not isinstance(arg, FloatVariable):
        expr = arg.value.node.expr
        if arg.value.node.hint is None or expr.free_symbols - ctx.symbol_sources.keys():
            raise GraphBreak("BD002", f"{arg.describe()} as an argument of a cached function")
        return arg.value.node.hint, _source_of(ctx, expr)
    return None


def _source_of(ctx: Context, expr: Any) -> Source:
    """The source of a size, computed from its symbols' sources."""
    if expr.is_Symbol:
        return ctx.symbol_sources[expr]
    if expr.is_Integer:
        return ConstSource(int(expr))
    function, operands = size_operation(expr)
    first, *others = [_source_of(ctx, operand) for operand in operands]
    if not others:
        return ComputedSource(function, (first,))
    for other in others:
        first = ComputedSource(function, (first, other))
    return first


def packed(*items: Any) -> tuple[Any, ...]:
    """A tuple of arguments."""
    return items
