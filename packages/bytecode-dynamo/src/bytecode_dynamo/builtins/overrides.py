"""``__torch_function__`` of objects, tensor subclasses and modes, evaluated in torch's order.

Graphs compute on plain tensors: an input of a subclass is passed as an alias without it, and a
result gets its class at the graph's end.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.overrides
from symshapes import is_wrapper_class
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    call_torch,
    get_attribute,
    new_dict,
    new_list,
    new_value,
    pairs_of,
    raise_error,
    wrap_value,
)
from bytecode_dynamo.state.requirements import remember_tensor
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.base import realize
from bytecode_dynamo.variables.callable import CallableVariable
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import (
    NONE,
    ConstantVariable,
    SliceVariable,
    SymbolicVariable,
)
from bytecode_dynamo.variables.sequence import ListVariable, TupleVariable, new_tuple
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

_DEFAULT: Any = torch.Tensor.__torch_function__
_Tensor: Any = torch.Tensor


def overriding(ctx: Context, values: Any) -> Iterator[VariableTracker]:
    """The values, also inside of lists and tuples, whose classes override torch calls."""
    for value in values:
        if isinstance(value, TensorVariable):
            if value.overrides:
                enabled = not ctx.modes.overrides_off_at_entry
                read = torch._C._is_torch_function_enabled
                same = Answer("{}()", lambda now: now(), enabled)
                ctx.guards.require(ConstSource(read), GuardKind.CUSTOM, same)
            if value.overrides and not ctx.modes.overrides_off(ctx):
                yield value
        elif isinstance(value, UserObjectVariable):
            if hasattr(value.python_type(), "__torch_function__"):
                yield value
        elif isinstance(value, (ListVariable, TupleVariable)):
            yield from overriding(ctx, (realize(ctx, item) for item in value.elements(ctx)))


@protocol.dispatch_override.implement
def dispatch(
    ctx: Context, op: str, target: Any, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """The result of modes and classes for a torch call; None if none overrides it."""
    found = list(overriding(ctx, args[:1] if op == "set_attr" else (*args, *kwargs.values())))
    modes = ctx.modes.function_modes(ctx)
    if not found and (not modes or _only_set_devices(modes, op, target)):
        return None
    classes = _in_order([value.python_type() for value in found])
    if (
        not modes
        and len(classes) == 1
        and issubclass(classes[0], torch.Tensor)
        and _is_default(classes[0])
    ):
        if op == "get_attr":
            owner: Any = args[0]
            getter = CallableVariable(getattr(getattr(torch.Tensor, target), "__get__", None))
            return _converted(ctx, classes[0], lambda: owner.get_by_torch(ctx, target), getter)
        if op == "set_attr":
            return _converted(
                ctx, classes[0], lambda: args[0].set_attr(ctx, target, args[1]) or NONE
            )
        return _converted(ctx, classes[0], lambda: call_torch(ctx, target, args, kwargs))
    function, given, named = _recorded(ctx, op, target, args, kwargs)
    rest = [new_tuple([ClassVariable(cls) for cls in classes]), given, named]
    if modes:
        with ctx.modes.outer_function_modes(ctx):
            return modes[-1].call_method(ctx, "__torch_function__", [function, *rest], {})
    for cls in classes:
        result = get_attribute(ctx, ClassVariable(cls), "__torch_function__").call(
            ctx, [function, *rest], {}
        )
        if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
            return result
    names = ", ".join(cls.__qualname__ for cls in classes)
    return raise_error(
        ctx,
        TypeError,
        f"Multiple dispatch failed for {function.describe()}: {names} gave NotImplemented",
    )


def _only_set_devices(modes: Sequence[VariableTracker], op: str, target: Any) -> bool:
    """Whether all modes give a device to constructors of tensors, and the call is of none."""
    return not (op == "call_function" and target in _device_constructors()) and all(
        mode.python_type() is DeviceContext for mode in modes
    )


def _in_order(classes: list[type]) -> list[type]:
    """Each class once; a subclass comes before the classes that it extends."""
    order: list[type] = []
    for cls in dict.fromkeys(classes):
        place = next((k for k, other in enumerate(order) if issubclass(cls, other)), len(order))
        order.insert(place, cls)
    return order


def _is_default(cls: Any) -> bool:
    return cls.__torch_function__.__func__ is _DEFAULT.__func__


# -- which function a call names, and with what arguments ------------------------------------------


class _OverrideCall(BaseException):
    """Carries the arguments that a torch call passes to its overrides."""


class _RecordingMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _OverrideCall(func, args, kwargs or {})


class _OverrideProbe:
    """A stand-in for an object with ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _OverrideCall(func, args, kwargs or {})


class _Placeholders:
    """Stand-ins for the arguments of a call."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.known: dict[int, tuple[Any, VariableTracker]] = {}

    def of(self, value: VariableTracker) -> Any:
        """The stand-in for an argument."""
        if isinstance(value, (ListVariable, TupleVariable)):
            items = [self.of(realize(self.ctx, item)) for item in value.elements(self.ctx)]
            return items if isinstance(value, ListVariable) else tuple(items)
        if isinstance(value, SliceVariable):
            return slice(*map(self.of, value.parts))
        if isinstance(value, TensorVariable):
            made: Any = torch.empty(0, dtype=value.fake.dtype)
        elif isinstance(value, UserObjectVariable):
            made = _OverrideProbe()
        elif isinstance(value, SymbolicVariable):
            made = value.value
        else:
            return value.as_constant(self.ctx)
        self.known[id(made)] = (made, value)
        return made

    def tracker(self, value: Any) -> VariableTracker:
        """The argument that a value stands for."""
        if id(value) in self.known:
            return self.known[id(value)][1]
        if type(value) in (tuple, list, torch.Size):
            items = [self.tracker(item) for item in value]
            if type(value) is list:
                return new_list(self.ctx, items)
            return new_tuple(items, type(value))
        if isinstance(value, slice):
            return SliceVariable(
                (self.tracker(value.start), self.tracker(value.stop), self.tracker(value.step))
            )
        return new_value(self.ctx, value)


def _recorded(
    ctx: Context, op: str, target: Any, args: Args, kwargs: Kwargs
) -> tuple[VariableTracker, VariableTracker, VariableTracker]:
    """The function, arguments and keywords that ``__torch_function__`` receives, recorded from a
    call with stand-ins.
    """
    stand_ins = _Placeholders(ctx)
    given, named = (
        [stand_ins.of(arg) for arg in args],
        {name: stand_ins.of(value) for name, value in kwargs.items()},
    )
    if op == "set_attr":
        call: Any = functools.partial(setattr, given.pop(0), target)
    elif op != "call_function":
        function, given = functools.partial(getattr, given[0], target), given[1:]
        call = function if op == "get_attr" else lambda *rest, **named: function()(*rest, **named)
    else:
        call = target
    try:
        with torch._C._EnableTorchFunction(), _RecordingMode():
            call(*given, **named)
    except _OverrideCall as found:
        function, given, named = found.args
        pairs: list[Any] = [
            (ConstantVariable(name), stand_ins.tracker(value)) for name, value in named.items()
        ]
        return (
            _callee(ctx, function),
            new_tuple(list(map(stand_ins.tracker, given))),
            new_dict(ctx, pairs),
        )
    except Exception as error:
        raise GraphBreak(
            "BD018", f"{target} under __torch_function__: {type(error).__name__}: {error}"
        ) from None
    raise GraphBreak("BD018", f"{target} does not ask __torch_function__")


def _callee(ctx: Context, function: Any) -> VariableTracker:
    if isinstance(function, types.MethodWrapperType):
        return CallableVariable(function)  # ``torch.Tensor.shape.__get__``
    return wrap_value(ctx, function, ConstSource(function))


# -- the default -----------------------------------------------------------------------------------


@evaluates_call(_DEFAULT.__func__)
def default_torch_function(
    ctx: Context, cls: VariableTracker, func: VariableTracker, types: VariableTracker,
    args: VariableTracker | None = None,
    kwargs: VariableTracker | None = None,
) -> VariableTracker:  # fmt: skip
    wanted: Any = cls.as_constant(ctx)
    if not all(issubclass(wanted, one.as_constant(ctx)) for one in types.unpack(ctx)):
        return ConstantVariable(NotImplemented)
    given = [] if args is None else args.unpack(ctx)
    none = kwargs is None or isinstance(kwargs, ConstantVariable)
    named = (
        {}
        if none
        else {
            key.as_constant(ctx): realize(ctx, held)
            for key, held in pairs_of(ctx, cast("Any", kwargs))
        }
    )
    return _converted(ctx, wanted, lambda: func.call(ctx, given, named), func)


def _converted(
    ctx: Context, cls: type, call: Any, func: VariableTracker | None = None
) -> VariableTracker:
    """The result of a call without subclass overrides; new tensors in it get the class."""
    before = set(ctx.tensors)
    with ctx.modes.without_overrides(ctx):
        result = call()
    if (
        isinstance(func, CallableVariable)
        and func.value in torch.overrides.get_default_nowrap_functions()
    ):
        return result
    return _of_class(ctx, result, cls, before)


def _of_class(
    ctx: Context, result: VariableTracker, cls: type, before: set[int]
) -> VariableTracker:
    if cls is torch.Tensor:
        return result
    if isinstance(result, TensorVariable) and not issubclass(result.cls, cls):
        return with_class(ctx, alias(ctx, result) if id(result.fake) in before else result, cls)
    if isinstance(result, TupleVariable):
        return TupleVariable(
            tuple(_of_class(ctx, realize(ctx, item), cls, before) for item in result.items),
            result.cls,
        )
    if isinstance(result, ListVariable):
        return new_list(ctx, [_of_class(ctx, item, cls, before) for item in result.unpack(ctx)])
    return result


def alias(ctx: Context, value: TensorVariable) -> TensorVariable:
    """Another tensor object over the same data."""
    with ctx.modes.without_overrides(ctx):
        return cast("TensorVariable", call_torch(ctx, torch.ops.aten.alias.default, [value]))


def with_class(ctx: Context, value: TensorVariable, cls: type) -> TensorVariable:
    """A new tensor as one of a subclass."""
    if is_wrapper_class(cls):
        raise GraphBreak("BD019", f"{cls.__qualname__} has __torch_dispatch__")
    made = TensorVariable(value.node, value.fake, cls)
    remember_tensor(ctx, made)
    return made


def as_subclass(ctx: Context, value: TensorVariable, cls: VariableTracker) -> VariableTracker:
    """``value.as_subclass(cls)``."""
    wanted = cls.as_constant(ctx)
    if wanted.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:  # pyright: ignore
        raise GraphBreak("BD019", f"{wanted.__qualname__} has __torch_dispatch__")
    return with_class(ctx, alias(ctx, value), wanted)


TENSOR_METHODS["as_subclass"] = as_subclass


@evaluates_call(_Tensor._make_subclass)
def make_subclass(
    ctx: Context,
    cls: VariableTracker,
    data: VariableTracker,
    require_grad: VariableTracker | None = None,
) -> VariableTracker:
    with ctx.modes.without_overrides(ctx):
        made = data.call_method(ctx, "detach", [], {})
        if require_grad is not None and require_grad.truth(ctx):
            made = made.call_method(ctx, "requires_grad_", [], {})
    assert isinstance(made, TensorVariable)
    if not made.fake.requires_grad:
        return as_subclass(ctx, made, cls)
    return with_class(ctx, made, cls.as_constant(ctx))


evaluates_call(torch.overrides._push_mode)(
    lambda ctx, mode: ctx.modes.push_function_mode(ctx, mode)
)
evaluates_call(torch.overrides._pop_mode)(lambda ctx: ctx.modes.pop_function_mode(ctx))


@evaluates_call(torch.device.__enter__)
def enter_device(ctx: Context, device: VariableTracker) -> VariableTracker:
    """``with device:``, which pushes a mode in C."""
    ctx.modes.push_function_mode(ctx, ClassVariable(DeviceContext).call(ctx, [device], {}))
    return device


@evaluates_call(torch.device.__exit__)
def leave_device(
    ctx: Context, device: VariableTracker, *exception: VariableTracker
) -> VariableTracker:
    ctx.modes.pop_function_mode(ctx)
    return NONE
