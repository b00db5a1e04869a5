"""Python's built-in functions."""

from __future__ import annotations

import bisect
import builtins
import collections
import copyreg
import functools
import heapq
import inspect
import itertools
import json
import operator
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.function_table import evaluates_call, evaluates_code, evaluates_each
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.polyfills.iterators import CallableIterator, islice_bounds, tee
from bytecode_dynamo.state.protocol import (
    call_polyfill,
    fold_call,
    get_attribute,
    instantiate,
    new_class,
    new_list,
    new_value,
    raise_error,
    raising,
    stop_iteration,
    until_stop,
    wrap_value,
    written_as,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import find_in_class, find_special, has_special
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import NumberOfVariable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.derived import native
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import ListVariable, new_tuple
from bytecode_dynamo.variables.sequence_methods import Comparable, sort_items
from bytecode_dynamo.variables.sets import SetVariable
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.userobject import InstanceDictVariable, UserObjectVariable
from bytecode_dynamo.variables.wording import accepted

from .comparison import compare

if TYPE_CHECKING:
    from bytecode_dynamo.state.context import Context

Value = VariableTracker


evaluates_call(len)(lambda ctx, value: value.length(ctx))
evaluates_call(callable)(
    lambda ctx, value: ConstantVariable(has_special(ctx, value.python_type(), "__call__"))
)


@evaluates_call(getattr)
def getattr_(ctx: Context, owner: Value, name: Value, *default: Value) -> Value:
    attribute = name.as_constant(ctx)
    if not isinstance(attribute, str):
        raise_error(
            ctx, TypeError, f"attribute name must be string, not {type(attribute).__name__!r}"
        )
    if not default:
        return get_attribute(ctx, owner, attribute)
    try:
        return get_attribute(ctx, owner, attribute)
    except ObservedException as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return default[0]


@evaluates_call(hasattr)
def hasattr_(ctx: Context, owner: Value, name: Value) -> Value:
    try:
        get_attribute(ctx, owner, name.as_constant(ctx))
    except ObservedException as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return ConstantVariable(False)
    except GraphBreak as error:
        # The attribute exists; only its value can't be evaluated.
        if error.id != "BD014":
            raise
    return ConstantVariable(True)


evaluates_call(setattr)(
    lambda ctx, owner, name, value: owner.set_attr(ctx, name.as_constant(ctx), value)
)
evaluates_call(delattr)(lambda ctx, owner, name: owner.del_attr(ctx, name.as_constant(ctx)))


@evaluates_code(functools.singledispatch(len))
def single_dispatch(
    ctx: Context, function: FunctionVariable, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """The implementation for the type of the first argument; the registry is guarded."""
    if function.value is None or function.source is None or not args:
        raise GraphBreak("BD002", f"call of {function.describe()}, which dispatches on a type")
    found: Value = function
    for variable in ("dispatch", "registry"):
        assert isinstance(found, FunctionVariable)
        found = realize(ctx, found.closure[found.code.co_freevars.index(variable)]).get_attr(
            ctx, "cell_contents"
        )
    chosen = function.value.dispatch(args[0].python_type())
    return wrap_value(ctx, chosen, ConstSource(chosen)).call(ctx, args, kwargs)


@evaluates_code(functools.singledispatch(len).dispatch)
def dispatched(
    ctx: Context, function: FunctionVariable, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """The implementation for a class, for ``functools.singledispatchmethod``."""
    if function.value is None:
        raise GraphBreak("BD002", f"call of {function.describe()}, which dispatches on a type")
    realize(ctx, function.closure[function.code.co_freevars.index("registry")]).get_attr(
        ctx, "cell_contents"
    )
    chosen = function.value(*(arg.as_constant(ctx) for arg in args))
    return wrap_value(ctx, chosen, ConstSource(chosen))


evaluates_call(inspect.isclass)(
    lambda ctx, value: ConstantVariable(issubclass(value.python_type(), type))
)
evaluates_call(inspect.isfunction)(
    lambda ctx, value: ConstantVariable(value.python_type() is types.FunctionType)
)
evaluates_call(inspect.ismethod)(
    lambda ctx, value: ConstantVariable(value.python_type() is types.MethodType)
)


@evaluates_call(inspect.isgeneratorfunction)
def isgeneratorfunction(ctx: Context, value: Value) -> Value:
    return ConstantVariable(
        isinstance(value, FunctionVariable) and bool(value.code.co_flags & inspect.CO_GENERATOR)
    )


# -- iteration -------------------------------------------------------------------------------------


@evaluates_call(iter)
def iter_(ctx: Context, value: Value, *sentinel: Value) -> Value:
    if sentinel:
        return instantiate(ctx, CallableIterator, [value, *sentinel], {})
    return value.iterate(ctx)


@evaluates_call(next)
def next_(ctx: Context, iterator: Value, *default: Value) -> Value:
    if isinstance(iterator, UserObjectVariable):
        item = until_stop(lambda: iterator.ask(ctx, "__next__", []))
    else:
        item = iterator.next(ctx)
    if item is not None:
        return item
    return default[0] if default else stop_iteration(ctx, iterator)


evaluates_call(any)(lambda ctx, items: ConstantVariable(_search(ctx, items, True)))
evaluates_call(all)(lambda ctx, items: ConstantVariable(not _search(ctx, items, False)))


def _search(ctx: Context, items: Value, wanted: bool) -> bool:
    iterator = items.iterate(ctx)
    while (item := iterator.next(ctx)) is not None:
        ctx.count_instruction()
        if item.truth(ctx) == wanted:
            return True
    return False


evaluates_call(sorted)(
    lambda ctx, items, **options: new_list(ctx, sort_items(ctx, items.unpack(ctx), options))
)


@evaluates_call(functools.reduce)
def reduce_(ctx: Context, function: Value, items: Value, *initial: Value) -> Value:
    values = [*initial, *items.unpack(ctx)]
    if not values:
        return raise_error(ctx, TypeError, "reduce() of empty iterable with no initial value")
    return functools.reduce(lambda a, b: function.call(ctx, [a, b], {}), values)


evaluates_call(functools.cmp_to_key)(written_as(polyfills.cmp_to_key))


def hash_(ctx: Context, value: Value) -> Value:
    if isinstance(value, (UserObjectVariable, TensorVariable)):
        own = find_special(ctx, value.python_type(), "__hash__")[1]
        if own is object.__hash__:
            return _number_of(ctx, object.__hash__, value)
        if own is torch.Tensor.__hash__:
            return _number_of(ctx, id, value)
        made = (
            value.ask(ctx, "__hash__", [])
            if isinstance(value, UserObjectVariable)
            else accepted("__hash__", get_attribute(ctx, value, "__hash__").call(ctx, [], {}))
        )
        return fold_call(ctx, hash, [made]) if isinstance(made, ConstantVariable) else made
    if isinstance(value, NumberOfVariable):
        return value  # an address is its own hash
    ctx.evaluated.varies.append("a hash")
    return fold_call(ctx, hash, [value])


def _number_of(ctx: Context, function: Callable[..., int], *values: Value) -> Value:
    ctx.evaluated.varies.append(f"what {function.__name__} returns")
    return NumberOfVariable(function, values)


TENSOR_METHODS["__hash__"] = hash_
evaluates_call(hash)(hash_)
evaluates_call(id)(lambda ctx, value: _number_of(ctx, id, value))
evaluates_call(object.__hash__)(lambda ctx, value: _number_of(ctx, object.__hash__, value))
evaluates_call(threading.get_ident)(lambda ctx: _number_of(ctx, threading.get_ident))


@evaluates_each(print, input, open, builtins.breakpoint)
def input_output(ctx: Context, function: Any, *args: Value, **kwargs: Value) -> None:
    hint = _INSTEAD.get(
        function.__name__, f"call {function.__name__}() outside the compiled region"
    )
    raise GraphBreak("BD003", f"call of {function.__name__}()", hint)


_INSTEAD = {
    "print": "print outside the compiled region, or use a logger with values that are known",
    "breakpoint": "remove breakpoint(), or debug the function without compiling it",
}


evaluates_call(itertools.tee)(written_as(tee))
evaluates_call(collections._count_elements)(written_as(polyfills.count_elements))  # pyright: ignore[reportAttributeAccessIssue]


def _state(ctx: Context, value: Value) -> Value:
    assert isinstance(value, UserObjectVariable)
    return InstanceDictVariable(value).call_method(ctx, "copy", [], {})


@evaluates_call(types.SimpleNamespace.__eq__)
def namespace_eq(ctx: Context, left: Value, right: Value) -> Value:
    if not isinstance(right, UserObjectVariable) or not issubclass(
        right.python_type(), types.SimpleNamespace
    ):
        return ConstantVariable(NotImplemented)
    return compare(ctx, "==", _state(ctx, left), _state(ctx, right))


evaluates_call(types.SimpleNamespace.__repr__)(written_as(polyfills.describe_namespace))


@evaluates_call(object.__reduce_ex__)
def reduce_object(ctx: Context, value: Value, protocol: Value) -> Value:
    if isinstance(value, SetVariable):
        items = new_tuple([new_list(ctx, value.unpack(ctx))])
        return new_tuple([new_class(ctx, value.key.cls), items, NONE])
    if (
        not isinstance(value, UserObjectVariable)
        or find_in_class(value.python_type(), "__slots__")[0] >= 0
    ):
        raise GraphBreak("BD007", f"the copy of {value.describe()}")
    cls, held = value.python_type(), native(value)
    if (
        cls.__reduce__ is not object.__reduce__
        or hasattr(cls, "__getnewargs__")
        or hasattr(cls, "__getnewargs_ex__")
    ):
        return value.call_method(ctx, "__reduce__", [], {})
    state = _state(ctx, value)
    if "__getstate__" in {name for base in cls.__mro__[:-1] for name in base.__dict__}:
        state = value.call_method(ctx, "__getstate__", [], {})
    items = held.iterate(ctx) if isinstance(held, ListVariable) else NONE
    entries = (
        held.call_method(ctx, "items", [], {}).iterate(ctx)
        if isinstance(held, DictVariable)
        else NONE
    )
    new = wrap_value(ctx, copyreg.__newobj__, ConstSource(copyreg.__newobj__))  # pyright: ignore[reportAttributeAccessIssue]
    return new_tuple([new, new_tuple([new_class(ctx, cls)]), state, items, entries])


_highest_first = [
    getattr(heapq, name)
    for name in ("_heapify_max", "_heappop_max", "_heapreplace_max")
    if hasattr(heapq, name)
]


@evaluates_each(
    *_highest_first,
    *(heapq.heapify, heapq.heappush, heapq.heappop, heapq.heapreplace, heapq.heappushpop),
    *(bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right),
)
def move_items(
    ctx: Context, function: Any, items: Value, *args: Value, key: Value | None = None
) -> Value:
    """A function that moves items of a list by comparing them, such as ``heapq.heappush``."""
    held = native(items)
    if key is not None and not key.is_none:
        polyfill = getattr(polyfills, function.__name__)
        return call_polyfill(ctx, polyfill, [items, *args], {"key": key})
    if not isinstance(held, ListVariable):
        return fold_call(ctx, function, [items, *args])
    moved = [Comparable(ctx, item) for item in held.unpack(ctx)]
    compared = [Comparable(ctx, arg) for arg in args[:1]]
    with raising(ctx, IndexError):
        result = function(moved, *compared, *(arg.as_constant(ctx) for arg in args[1:]))
    held.replace(ctx, [item.value for item in moved])
    return result.value if isinstance(result, Comparable) else new_value(ctx, result)


_of_system = vars(sys.modules.get("posix") or sys.modules["nt"])
_paths = [found for name, found in _of_system.items() if name.startswith("_path_")]


@evaluates_each(
    *(*_paths, json.dumps, json.loads, os.fspath, sys.intern, str.maketrans, islice_bounds)
)
def fold(ctx: Context, function: Any, /, *args: Value, **named: Value) -> Value:
    return fold_call(ctx, function, args, named)


evaluates_call(operator.length_hint)(lambda ctx, value, *default: value.length(ctx))
