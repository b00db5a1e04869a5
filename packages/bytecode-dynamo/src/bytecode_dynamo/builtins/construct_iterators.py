"""Constructing iterators: zip, map, filter, enumerate, reversed, and those of itertools that are
evaluated lazily.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, constructs_each
from bytecode_dynamo.polyfills.iterators import POLYFILLS, Reversed
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import constant_of, iterate_range, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.iterator import (
    CombinationsIterator,
    ItemsIterator,
    ReversedIterator,
    iterate_keys,
)
from bytecode_dynamo.variables.lazy_iterator import (
    CountIterator,
    EnumerateIterator,
    FilterIterator,
    PolyfilledIterator,
    RepeatIterator,
    ZipIterator,
)
from bytecode_dynamo.variables.mapping import DictVariable, DictViewVariable
from bytecode_dynamo.variables.sequence import ListVariable, RangeVariable, new_tuple
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
        return make_polyfilled(ctx, Reversed, items)
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
    if isinstance(items, RangeVariable):
        return iterate_range(ctx, items.value[::-1])
    backward = tuple(reversed(items.unpack(ctx)))
    return ItemsIterator(Identity(reversed), items=backward, base=items)


@constructs(itertools.count)
def make_count(
    ctx: Context, start: VariableTracker | None = None, step: VariableTracker | None = None
) -> VariableTracker:
    return CountIterator(
        Identity(itertools.count),
        start=start or ConstantVariable(0),
        step=step or ConstantVariable(1),
    )


@constructs(itertools.repeat)
def make_repeat(
    ctx: Context, item: VariableTracker, times: VariableTracker | None = None
) -> VariableTracker:
    limit = None if times is None else max(0, times.as_index(ctx))
    return RepeatIterator(Identity(itertools.repeat), item=item, times=limit)


_BY_NATIVE_TYPE: dict[Any, Any] = {
    polyfill.native: polyfill
    for polyfill in POLYFILLS
    if vars(polyfill).get("native") and polyfill is not Reversed  # CPython 3.11 has no batched
}


@constructs_each(*POLYFILLS, *_BY_NATIVE_TYPE)
def make_polyfilled(
    ctx: Context, cls: Any, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    """An iterator of the native type, for this or its polyfill."""
    polyfill = _BY_NATIVE_TYPE.get(cls, cls)
    try:
        inspect.signature(polyfill).bind(*args, **named)
    except TypeError as error:
        raise GraphBreak("BD007", f"{polyfill.native.__name__}(): {error}") from None
    state = UserObjectVariable(Identity(polyfill))
    state.call_method(ctx, "__init__", args, named)
    return PolyfilledIterator(Identity(polyfill.native), polyfill=state)


@constructs_each(
    *(itertools.product, itertools.permutations),
    *(itertools.combinations, itertools.combinations_with_replacement),
)
def combine(
    ctx: Context, cls: Any, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    """Combinations of known elements."""
    operands = [
        arg
        if isinstance(arg, ConstantVariable) and not isinstance(arg.value, str)
        else new_tuple(arg.unpack(ctx))
        for arg in args
    ]
    values = [
        operand.value if isinstance(operand, ConstantVariable) else operand.unpack(ctx)
        for operand in operands
    ]
    options = {name: value.as_constant(ctx) for name, value in named.items()}
    return CombinationsIterator(
        Identity(cls),
        items=tuple(map(new_tuple, cls(*values, **options))),
        operands=tuple(operands),
        options=tuple(named.items()),
    )
