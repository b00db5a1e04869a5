"""Trackers of values that were computed while evaluating."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from symshapes import is_nested_int

from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import new_dict, new_iterator, new_list, new_value, wrap_value
from bytecode_dynamo.state.tracker import VariableTracker

from .callable import NamespaceVariable
from .class_object import ClassVariable
from .constant import ConstantVariable, SymbolicVariable, is_constant_value
from .module import PythonModuleVariable
from .proxy import ProxyVariable
from .ragged_size import RaggedSizeVariable
from .sequence import RangeVariable, TupleVariable
from .sets import set_of

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@protocol.new_value.implement
def _new_value(ctx: Context, value: Any) -> VariableTracker:
    """The tracker of a value computed while evaluating; its containers are new objects."""
    if is_constant_value(value):
        return ConstantVariable(value)
    if is_nested_int(value):
        return RaggedSizeVariable(value)
    if isinstance(value, SYMBOLIC_TYPES):
        expr = value.node.expr
        if expr.is_number or (getattr(expr, "is_Boolean", False) and not expr.free_symbols):
            return ConstantVariable(value.node.pytype(expr))
        return SymbolicVariable(value)
    rule = _CREATORS.get(type(value))
    if rule is not None:
        return rule(ctx, value)
    if isinstance(value, tuple) and (
        hasattr(type(value), "_fields") or type(value).__module__ == "torch.return_types"
    ):
        return TupleVariable(tuple(new_value(ctx, item) for item in value), type(value))
    if isinstance(value, Iterator):
        # the object itself can be consumed only once
        return new_iterator(ctx, [new_value(ctx, item) for item in value])
    return wrap_value(ctx, value, ConstSource(value))


def _create_items(cls: type) -> Callable[[Any, Any], VariableTracker]:
    return lambda ctx, value: TupleVariable(tuple(new_value(ctx, item) for item in value), cls)


def _create_mapping(ctx: Any, value: Any) -> VariableTracker:
    return new_dict(
        ctx,
        [(new_value(ctx, key), new_value(ctx, held)) for key, held in value.items()],
        type(value),
    )


def _create_set(ctx: Any, value: Any) -> VariableTracker:
    items = [new_value(ctx, item) for item in value]
    return set_of(ctx, {item.hash_key(ctx): item for item in items}, type(value))


_CREATORS: dict[type, Callable[[Any, Any], VariableTracker]] = {
    tuple: _create_items(tuple),
    torch.Size: _create_items(torch.Size),
    list: lambda ctx, value: new_list(ctx, [new_value(ctx, item) for item in value]),
    dict: _create_mapping,
    collections.OrderedDict: _create_mapping,
    set: _create_set,
    frozenset: _create_set,
    range: lambda ctx, value: RangeVariable(value),
    type: lambda ctx, value: ClassVariable(value),
    torch.finfo: lambda ctx, value: NamespaceVariable(value),
    torch.iinfo: lambda ctx, value: NamespaceVariable(value),
    types.ModuleType: lambda ctx, value: PythonModuleVariable(value),
    types.MappingProxyType: lambda ctx, value: ProxyVariable(new_value(ctx, dict(value))),
}
