"""Constructors of built-in types, numbers and tensors."""

from __future__ import annotations

import collections
from typing import Any

import torch

from bytecode_dynamo.builtins.construct import construct
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, constructs_each
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_torch,
    constant_of,
    decide,
    fold_call,
    new_dict,
    new_list,
    new_value,
    raise_error,
    raising,
)
from bytecode_dynamo.state.tracker import Args, VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable
from bytecode_dynamo.variables.attribute import has_special
from bytecode_dynamo.variables.class_object import SuperVariable
from bytecode_dynamo.variables.constant import (
    NONE,
    ConstantVariable,
    FloatVariable,
    SliceVariable,
    SymbolicVariable,
    computed_number,
)
from bytecode_dynamo.variables.input_numbers import number_of_input
from bytecode_dynamo.variables.mapping import dict_of
from bytecode_dynamo.variables.sequence import RangeVariable, SequenceVariable, new_tuple
from bytecode_dynamo.variables.sets import members_of, set_of
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .text_functions import text_rule

constructs(list)(
    lambda ctx, items=None, /: new_list(ctx, items.unpack(ctx) if items is not None else [])
)


@constructs(collections.deque)
def make_deque(
    ctx: Context, iterable: VariableTracker | None = None, maxlen: VariableTracker | None = None
) -> VariableTracker:
    longest = None if maxlen is None else constant_of(ctx, maxlen, "the length of a deque")
    if isinstance(longest, int) and longest < 0:
        raise_error(ctx, ValueError, "maxlen must be non-negative")
    items = collections.deque(iterable.unpack(ctx) if iterable is not None else [], longest)
    return new_list(ctx, list(items), collections.deque, longest)


constructs(tuple)(
    lambda ctx, items=None, /: new_tuple(items.unpack(ctx) if items is not None else [])
)


constructs(torch.Size)(
    lambda ctx, items=None, /: new_tuple(items.unpack(ctx) if items is not None else [], torch.Size)
)


@constructs_each(dict, collections.OrderedDict)
def make_dict(
    ctx: Context, cls: type, /, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    made = new_dict(ctx, [], cls)
    if args or named:
        made.call_method(ctx, "update", list(args), named)
    return made


@constructs(collections.defaultdict)
def make_defaultdict(
    ctx: Context, /, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    factory = args[0] if args and not args[0].is_none else None
    if factory is not None and not has_special(ctx, factory.python_type(), "__call__"):
        raise_error(ctx, TypeError, "first argument must be callable or None")
    made = dict_of(ctx, {}, collections.defaultdict, factory)
    if len(args) > 1 or named:
        made.call_method(ctx, "update", list(args[1:]), named)
    return made


constructs_each(set, frozenset)(
    lambda ctx, cls, *items: set_of(ctx, members_of(ctx, items[0]) if items else {}, cls)
)


@constructs(range)
def make_range(ctx: Context, *bounds: VariableTracker) -> VariableTracker:
    with raising(ctx, TypeError, ValueError):
        return RangeVariable(range(*(bound.as_index(ctx) for bound in bounds)))


@constructs(slice)
def make_slice(ctx: Context, *parts: VariableTracker) -> VariableTracker:
    if not 1 <= len(parts) <= 3:
        return fold_call(ctx, slice, parts)
    start, stop, step = (
        (NONE, parts[0], NONE) if len(parts) == 1 else (*parts, *([NONE] * (3 - len(parts))))
    )
    return SliceVariable((start, stop, step))


constructs(super)(lambda ctx, cls, owner: SuperVariable(cls.as_constant(ctx), owner))


constructs(object)(lambda ctx: UserObjectVariable(Identity(object)))


constructs(bool)(lambda ctx, *value: ConstantVariable(value[0].truth(ctx) if value else False))


@constructs_each(int, float)
def make_number(
    ctx: Context, cls: type, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    # with a base, Python converts text only
    value = args[0] if len(args) == 1 and not named else None
    if isinstance(value, ArrayVariable) and not value.tensor.fake.dim():
        value = value.tensor
    if isinstance(value, TensorVariable):
        number = number_of_input(ctx, value)
        if number is not None:
            return construct(ctx, cls, [number], {})
        if not ctx.config.capture_scalar_outputs and value.fake.known_number is None:
            raise GraphBreak(
                "BD004",
                f"{cls.__name__}() of {value.describe()}",
                "keep the number in a tensor, or set bytecode_dynamo.config.capture_scalar_outputs",
            )
        if value.fake.dtype is torch.bool:
            value = value.call_method(ctx, "long", [], {})
        return construct(ctx, cls, [value.call_method(ctx, "item", [], {})], {})
    if isinstance(value, FloatVariable):
        return value if cls is float else computed_number(ctx, int, [value])
    if isinstance(value, SymbolicVariable):
        convert: Any = torch.sym_int if cls is int else torch.sym_float
        return new_value(ctx, decide(ctx, lambda: convert(value.value), value.describe()))
    return converted(ctx, cls, args) or fold_call(ctx, cls, args, named)


_CONVERSIONS = {
    int: ("__int__", "__index__"),
    float: ("__float__", "__index__"),
    bytes: ("__bytes__",),
}


def converted(ctx: Context, cls: type, args: Args) -> VariableTracker | None:
    """The result of the object's first special method for a conversion; None for other values."""
    if len(args) != 1 or not isinstance(args[0], UserObjectVariable):
        return None
    for name in _CONVERSIONS.get(cls, ("__complex__", "__float__", "__index__")):
        method = args[0].special(ctx, name)
        if method is not None:
            made = method.call(ctx, [], {})
            if made.python_type() is cls or cls is int:
                return made
            return call_known(ctx, cls, [made])
    return None


constructs_each(type(None), complex, bytes, torch.device, torch.finfo, torch.iinfo)(
    lambda ctx, cls, *args, **named: converted(ctx, cls, args) or fold_call(ctx, cls, args, named)
)


@constructs(str)
def make_str(ctx: Context, *args: VariableTracker) -> VariableTracker:
    if not args:
        return ConstantVariable("")
    return text_rule(str)(ctx, *args)


@constructs(torch.Tensor)
def make_tensor(ctx: Context, *args: VariableTracker, **named: VariableTracker) -> VariableTracker:
    return call_torch(ctx, torch.Tensor, _sizes_apart(ctx, args), named)


def _new(
    ctx: Context, x: VariableTracker, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    return call_torch(ctx, "new", [x, *_sizes_apart(ctx, args)], named)


TENSOR_METHODS["new"] = _new


def _sizes_apart(ctx: Context, args: Args) -> list[VariableTracker]:
    """The sizes of a new tensor. ``torch.Tensor`` reads a Size as a shape but a tuple as data, so
    pass dimensions separately.
    """
    if len(args) == 1 and args[0].python_type() is torch.Size:
        return args[0].unpack(ctx)
    return list(args)


@constructs_each(
    *(torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor),
    *(torch.ByteTensor, torch.CharTensor, torch.ShortTensor, torch.IntTensor),
    *(torch.LongTensor, torch.BoolTensor),
)
def make_typed_tensor(ctx: Context, cls: Any, *args: VariableTracker) -> VariableTracker:
    """``torch.FloatTensor(data)`` or ``torch.FloatTensor(*sizes)``."""
    is_data = (
        len(args) == 1
        and isinstance(args[0], SequenceVariable)
        and args[0].python_type() is not torch.Size
    )
    dtype = {"dtype": ConstantVariable(cls.dtype)}
    return call_known(
        ctx, torch.tensor if is_data else torch.empty, args or [ConstantVariable(0)], dtype
    )
