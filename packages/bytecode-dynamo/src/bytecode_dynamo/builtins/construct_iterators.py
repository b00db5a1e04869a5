"""Constructing iterators: zip, map, filter, enumerate, reversed, and those of itertools that are
evaluated lazily.
"""

from __future__ import annotations

import itertools

from bytecode_dynamo.function_table import constructs
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import constant_of, new_iterator, new_list, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.iterator import ItemsIterator, ReversedIterator, iterate_keys
from bytecode_dynamo.variables.lazy_iterator import (
    ChainIterator,
    CountIterator,
    CycleIterator,
    EnumerateIterator,
    FilterIterator,
    IsliceIterator,
    RepeatIterator,
    ZipIterator,
    islice_bounds,
)
from bytecode_dynamo.variables.mapping import DictVariable, DictViewVariable
from bytecode_dynamo.variables.sequence import ListVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable


@constructs(zip)
def make_zip(
    ctx: Context, *parts: VariableTracker, strict: VariableTracker | None = None
) -> VariableTracker:
    iterators = tuple(part.iterate(ctx) for part in parts)
    return ZipIterator(
        Identity(zip), parts=iterators, strict=strict is not None and strict.truth(ctx)
    )


@constructs(map)
def make_map(ctx: Context, function: VariableTracker, *parts: VariableTracker) -> VariableTracker:
    return ZipIterator(
        Identity(map), parts=tuple(part.iterate(ctx) for part in parts), function=function
    )


@constructs(filter)
def make_filter(ctx: Context, function: VariableTracker, items: VariableTracker) -> VariableTracker:
    return FilterIterator(
        Identity(filter), base=items.iterate(ctx), function=None if function.is_none else function
    )


@constructs(enumerate)
def make_enumerate(
    ctx: Context, items: VariableTracker, start: VariableTracker | None = None
) -> VariableTracker:
    first = 0 if start is None else constant_of(ctx, start, "the start of enumerate")
    return EnumerateIterator(Identity(enumerate), base=items.iterate(ctx), start=first)


@constructs(reversed)
def make_reversed(ctx: Context, items: VariableTracker) -> VariableTracker:
    if isinstance(items, UserObjectVariable):
        method = items.special(ctx, "__reversed__")
        if method is not None:
            return method.call(ctx, [], {})
        if items.special(ctx, "__len__") is None or items.special(ctx, "__getitem__") is None:
            raise_error(
                ctx, TypeError, f"{items.python_type().__name__!r} object is not reversible"
            )
        size = items.length(ctx).as_constant(ctx)
        return new_iterator(
            ctx, [items.get_item(ctx, ConstantVariable(index)) for index in reversed(range(size))]
        )
    if isinstance(items, TensorVariable):  # a class with __reversed__
        if items.fake.dim():
            return items.call_method(ctx, "flip", [ConstantVariable(0)], {})
        return items
    if not hasattr(items.python_type(), "__reversed__") and not hasattr(
        items.python_type(), "__getitem__"
    ):
        raise_error(ctx, TypeError, f"{items.python_type().__name__!r} object is not reversible")
    if isinstance(items, (DictVariable, DictViewVariable)):
        return iterate_keys(ctx, items, backward=True)
    if isinstance(items, ListVariable):
        key = Identity(type(reversed(items.key.cls())))
        ctx.effects.write(key, len(items.elements(ctx)) - 1)
        return ReversedIterator(key, base=items, moves=ctx.effects.moves(items.key))
    return ItemsIterator(Identity(reversed), items=tuple(reversed(items.unpack(ctx))))


@constructs(itertools.count)
def make_count(
    ctx: Context, start: VariableTracker | None = None, step: VariableTracker | None = None
) -> VariableTracker:
    return CountIterator(
        Identity(itertools.count),
        start=start or ConstantVariable(0),
        step=step or ConstantVariable(1),
    )


@constructs(itertools.chain)
def make_chain(ctx: Context, *parts: VariableTracker) -> VariableTracker:
    return ChainIterator(Identity(itertools.chain), base=new_iterator(ctx, parts))


@constructs(itertools.cycle)
def make_cycle(ctx: Context, items: VariableTracker) -> VariableTracker:
    return CycleIterator(
        Identity(itertools.cycle), base=items.iterate(ctx), saved=new_list(ctx, [])
    )


@constructs(itertools.islice)
def make_islice(ctx: Context, items: VariableTracker, *bounds: VariableTracker) -> VariableTracker:
    given = [bound.as_constant(ctx) for bound in bounds]
    try:
        itertools.islice((), *given)
    except (TypeError, ValueError) as error:
        raise_error(ctx, type(error), *error.args)
    limits = islice_bounds(given)
    return IsliceIterator(Identity(itertools.islice), base=items.iterate(ctx), bounds=limits)


@constructs(itertools.repeat)
def make_repeat(
    ctx: Context, item: VariableTracker, times: VariableTracker | None = None
) -> VariableTracker:
    limit = None if times is None else max(0, times.as_index(ctx))
    return RepeatIterator(Identity(itertools.repeat), item=item, times=limit)
