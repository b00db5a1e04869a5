"""``copy.copy`` and ``copy.deepcopy`` of constants, containers and objects without copying rules of
their own.
"""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import new_dict, new_list
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import (
    find_in_class,
    instance_names,
    load_instance_attribute,
)
from bytecode_dynamo.variables.base import LazyVariable, realize
from bytecode_dynamo.variables.callable import KnownObjectVariable
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable, is_constant_value
from bytecode_dynamo.variables.derived import DerivedVariable
from bytecode_dynamo.variables.exception import ExceptionVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.mapping import DictVariable, dict_of
from bytecode_dynamo.variables.sequence import ListVariable, TupleVariable
from bytecode_dynamo.variables.sets import SetVariable, set_of
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import InstanceDictVariable, UserObjectVariable

from .construct import new_object

Part = Callable[[VariableTracker], VariableTracker]
ATOMIC = (ConstantVariable, SymbolicVariable, KnownObjectVariable, FunctionVariable)
PLAIN = {
    "__reduce_ex__": object.__dict__["__reduce_ex__"],
    "__reduce__": object.__dict__["__reduce__"],
    "__getstate__": object.__dict__.get("__getstate__"),
}


@evaluates_call(copy.copy)
def shallow(ctx: Context, value: VariableTracker) -> VariableTracker:
    own = _own_rule(ctx, value, "__copy__")
    if own is not None:
        return own.call(ctx, [], {})
    return _copied(ctx, value, lambda part: part, lambda made: None)


@evaluates_call(copy.deepcopy)
def deep(
    ctx: Context, value: VariableTracker, memo: VariableTracker | None = None
) -> VariableTracker:
    if memo is None or memo.is_none:
        memo = new_dict(ctx, [])
    done: dict[object, VariableTracker] = ctx.copied.setdefault(memo.identity(), {})

    def part(value: VariableTracker) -> VariableTracker:
        if isinstance(value, LazyVariable) and is_constant_value(value.value):
            return value
        value = realize(ctx, value)
        # equal constants of different types are not copies
        if isinstance(value, ATOMIC):
            return value
        key = value.identity()
        if key not in done:
            own = _own_rule(ctx, value, "__deepcopy__")
            if own is not None:
                done[key] = own.call(ctx, [memo], {})
            elif isinstance(value, TensorVariable):
                done[key] = _copied_tensor(ctx, value)
            else:
                done[key] = _copied(ctx, value, part, lambda made: done.__setitem__(key, made))
        return done[key]

    return part(value)


def _copied_tensor(ctx: Context, value: TensorVariable) -> VariableTracker:
    """A copy of a tensor with its own memory."""
    if value.cls is not torch.Tensor or value.fake.requires_grad or not value.fake.is_contiguous():
        raise GraphBreak(
            "BD002", f"a copy of {value.describe()}", "copy it outside the compiled region"
        )
    return value.call_method(ctx, "clone", [], {})


def _own_rule(ctx: Context, value: VariableTracker, name: str) -> VariableTracker | None:
    return value.special(ctx, name) if isinstance(value, UserObjectVariable) else None


def _copied(
    ctx: Context, value: VariableTracker, part: Part, announce: Callable[[VariableTracker], None]
) -> VariableTracker:
    """A copy with the parts ``part(x)``; ``announce`` is called with it before its parts exist."""
    if isinstance(value, ATOMIC):
        return value
    if isinstance(value, TupleVariable):
        items = [part(item) for item in value.items]
        if all(a is b for a, b in zip(items, value.items)):
            return value
        return TupleVariable(tuple(items), value.cls)
    if isinstance(value, ListVariable):
        made: Any = new_list(ctx, [], value.key.cls)
        announce(made)
        made.replace(ctx, tuple(part(item) for item in value.elements(ctx)))
        return made
    if isinstance(value, SetVariable):
        return set_of(
            ctx, {key: part(item) for key, item in value.members(ctx).items()}, value.key.cls
        )
    if isinstance(value, DictVariable):
        fresh = dict_of(ctx, {}, value.key.cls, value.factory)
        announce(fresh)
        fresh.replace(
            ctx, {key: (part(name), part(held)) for key, (name, held) in value.entries(ctx).items()}
        )
        return fresh
    if isinstance(value, InstanceDictVariable):
        pairs = [(ConstantVariable(name), value.get(ctx, name)) for name in value.names(ctx)]
        return new_dict(ctx, [(name, part(held)) for name, held in pairs if held is not None])
    if isinstance(value, UserObjectVariable):
        return _copied_object(ctx, value, part, announce)
    raise GraphBreak(
        "BD002", f"a copy of {value.describe()}", "copy it outside the compiled region"
    )


def _copied_object(
    ctx: Context, value: UserObjectVariable, part: Part, announce: Callable[[Any], None]
) -> VariableTracker:
    cls = value.key.cls
    own = [
        name for name, rule in PLAIN.items() if rule is not None and _finds(cls, name) is not rule
    ]
    own += [
        name
        for name in ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__")
        if _finds(cls, name)
    ]
    plain = isinstance(cls.__init__, types.FunctionType) or cls.__init__ is object.__init__
    if (
        own
        or not plain
        or cls in copyreg.dispatch_table
        or isinstance(value, (DerivedVariable, ExceptionVariable))
    ):
        raise GraphBreak(
            "BD002",
            f"a copy of {value.describe()}, which has copying rules of its own",
            "copy it outside the compiled region",
        )
    made: Any = new_object(ctx, cls)
    announce(made)
    for name in instance_names(ctx, value.key):
        held = load_instance_attribute(ctx, value.key, name)
        assert held is not None
        ctx.effects.write((made.key, name), part(held))
    return made


def _finds(cls: type, name: str) -> Any:
    found = find_in_class(cls, name)[1]
    return found if found is not None and find_in_class(cls, name)[0] >= 0 else None
