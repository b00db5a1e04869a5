"""``isinstance`` and ``issubclass``: classes, tuples, abstract classes, protocols, metaclasses."""

from __future__ import annotations

import abc
import types
import typing
from typing import Any

import torch
from torch.storage import TypedStorage

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.guards.step import describe
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_known, get_attribute, new_value, raise_error
from bytecode_dynamo.state.requirements import example_of, require_order
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import find_in_class, find_special
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

Value = VariableTracker


@evaluates_call(isinstance)
def isinstance_(ctx: Context, value: Value, cls: Value) -> Value:
    wanted = cls.as_constant(ctx)
    if isinstance(wanted, tuple):
        return ConstantVariable(
            any(
                call_known(ctx, isinstance, [value, new_value(ctx, one)]).truth(ctx)
                for one in wanted
            )
        )
    if isinstance(value, TensorVariable) and type(wanted) is type(torch.FloatTensor):
        name = value.call_method(ctx, "type", [], {}).as_constant(ctx)
        return ConstantVariable(name == f"{wanted.__module__}.{wanted.__name__}")
    if (
        isinstance(value, TensorVariable)
        and value.torch_class is torch.Tensor is not value.cls
        and wanted in _FLAGS
    ):
        return ConstantVariable(_is_flagged(ctx, value, _FLAGS[wanted]))
    told = _told(ctx, cls, "__instancecheck__", value)
    if told is not None:
        return told
    if isinstance(value, UserObjectVariable) and getattr(wanted, "_is_runtime_protocol", False):
        return ConstantVariable(_follows(ctx, value, wanted))
    classes = dict.fromkeys((value.python_type(), value.class_of(ctx)))
    return ConstantVariable(any(instance_of(ctx, actual, cls) for actual in classes))


_KNOWN_CHECKS = ("abc", "_py_abc", "typing", "torch", "enum")


def _told(ctx: Context, cls: Value, name: str, value: Value) -> Value | None:
    """The answer of the program's metaclass for a value; None if the check is Python's or torch's
    own.
    """
    check = find_special(ctx, type(cls.as_constant(ctx)), name)[1]
    if (
        isinstance(check, types.FunctionType)
        and check.__module__ == "torch.storage"
        and value.python_type() is TypedStorage
    ):
        raise GraphBreak("BD007", f"whether {value.describe()} is an instance of {cls.describe()}")
    if (
        not isinstance(check, types.FunctionType)
        or check.__module__.partition(".")[0] in _KNOWN_CHECKS
    ):
        return None
    return ConstantVariable(get_attribute(ctx, cls, name).call(ctx, [value], {}).truth(ctx))


@evaluates_call(type.__instancecheck__)
def is_instance(ctx: Context, cls: Value, value: Value) -> Value:
    return _has_base(ctx, cls, value.python_type())


@evaluates_call(type.__subclasscheck__)
def is_subclass(ctx: Context, cls: Value, value: Value) -> Value:
    return _has_base(ctx, cls, value.as_constant(ctx))


def _has_base(ctx: Context, cls: Value, actual: type) -> Value:
    require_order(ctx, actual)
    return ConstantVariable(cls.as_constant(ctx) in actual.__mro__)


_FLAGS = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def _is_flagged(ctx: Context, value: TensorVariable, flag: str) -> bool:
    """Whether torch marked a subclass's tensor as a parameter or buffer, which keeps its class."""
    example = example_of(ctx, value)
    if example is None or value.source is None:
        return False
    marked = bool(getattr(example, flag, False))
    same = Answer(f"{{}}.{flag}", lambda now: bool(getattr(now, flag, False)), marked)
    ctx.guards.require(value.source, GuardKind.CUSTOM, same)
    return marked


def _follows(ctx: Context, value: UserObjectVariable, protocol: Any) -> bool:
    """Whether an object or its class has a protocol's members."""
    nominal = protocol in value.python_type().__mro__
    names = () if nominal else _names_of(protocol)
    return all(
        call_known(ctx, hasattr, [value, ConstantVariable(name)]).truth(ctx) for name in names
    )


def _names_of(protocol: Any) -> set[str]:
    bases = [
        base
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing"
    ]
    names = {
        name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))
    }
    return {name for name in names - _OF_PROTOCOLS if not name.startswith("_abc_")}


@typing.runtime_checkable
class _Empty(typing.Protocol):
    pass


_OF_PROTOCOLS = {
    *vars(_Empty), "__slots__", "__annotations__", "__match_args__", "__static_attributes__",
    "__firstlineno__",
    "__type_params__", "__orig_bases__", "__args__",
}  # fmt: skip


@evaluates_call(issubclass)
def issubclass_(ctx: Context, value: Value, cls: Value) -> Value:
    actual, wanted = value.as_constant(ctx), cls.as_constant(ctx)
    if isinstance(wanted, tuple):
        return ConstantVariable(
            any(
                call_known(ctx, issubclass, [value, new_value(ctx, one)]).truth(ctx)
                for one in wanted
            )
        )
    told = _told(ctx, cls, "__subclasscheck__", value)
    if told is not None:
        return told
    if not hasattr(actual, "__bases__"):
        raise_error(ctx, TypeError, "issubclass() arg 1 must be a class")
    return ConstantVariable(
        instance_of(
            ctx, actual, cls, "issubclass() arg 2 must be a class, a tuple of classes, or a union"
        )
    )


NO_TYPE = "isinstance() arg 2 must be a type, a tuple of types, or a union"


def instance_of(ctx: Context, actual: type, cls: Value, no_type: str = NO_TYPE) -> bool:
    """Whether instances of ``actual`` are instances of a class or tuple of classes."""
    wanted = cls.as_constant(ctx)
    require_order(ctx, actual)
    for one in wanted if isinstance(wanted, tuple) else (wanted,):
        # some versions of CPython have no __instancecheck__ in a union's class
        one = one.__args__ if isinstance(one, types.UnionType) else one
        if isinstance(one, tuple):
            if instance_of(ctx, actual, new_value(ctx, one), no_type):
                return True
            continue
        index, check = find_in_class(type(one), "__instancecheck__")
        if index < 0:
            raise_error(ctx, TypeError, no_type)
        elif (
            issubclass(actual, one)
            if check is not type.__instancecheck__
            else one in actual.__mro__
        ):
            return True
        elif isinstance(one, abc.ABCMeta) and (actual, one) not in ctx.unrelated:
            ctx.unrelated.add((actual, one))
            ctx.guards.require(ConstSource(one), GuardKind.CUSTOM, _NotRegistered(actual))
    return False


class _NotRegistered(Answer):
    """Whether a class is not registered with an abstract class; checked again after any
    registration.
    """

    __slots__ = ("cls", "token")

    def __init__(self, cls: type) -> None:
        text = f"issubclass({describe(cls)}, {{}})"
        super().__init__(text, lambda abstract: issubclass(cls, abstract), False)
        self.cls, self.token = cls, abc.get_cache_token()

    def __call__(self, value: type) -> bool:
        now = abc.get_cache_token()
        if now == self.token:
            return True
        unrelated = not issubclass(self.cls, value)
        self.token = now if unrelated else self.token
        return unrelated
