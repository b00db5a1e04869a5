"""Constructing objects: built-in types, user classes, exceptions, mode contexts."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import types
import typing
from typing import Any

import torch

from bytecode_dynamo.class_flags import native_base
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import (
    CONSTRUCTORS,
    FUNCTIONS,
    constructs,
    evaluates_call,
)
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import ConstSource, ItemSource
from bytecode_dynamo.polyfills.iterators import ChainFromIterable
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    apply_rule,
    constants,
    fold_call,
    get_attribute,
    instantiate,
    new_class,
    new_dict,
    new_exception,
    raise_error,
    raising,
)
from bytecode_dynamo.state.requirements import require_class_attribute
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.attribute import (
    find_in_class,
    find_special,
    has_python_method,
    has_special,
)
from bytecode_dynamo.variables.base import Args, Kwargs, realize
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import BY_TEXT, NONE, ConstantVariable, is_constant_value
from bytecode_dynamo.variables.context import make_context
from bytecode_dynamo.variables.derived import DerivedVariable, new_derived
from bytecode_dynamo.variables.function import (
    BoundMethodVariable,
    FunctionVariable,
    PartialVariable,
)
from bytecode_dynamo.variables.module import NNModuleVariable
from bytecode_dynamo.variables.proxy import ProxyVariable
from bytecode_dynamo.variables.sequence import TupleVariable, is_plain_tuple, new_tuple
from bytecode_dynamo.variables.userobject import UserObjectVariable
from bytecode_dynamo.variables.wording import accepted

from .construct_wrapper import WrapperDraft, finish_wrapper


@protocol.instantiate.implement
def _instantiate(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    return construct(ctx, cls, list(args), dict(kwargs))


def construct(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    """``cls(*args, **kwargs)``."""
    rule = CONSTRUCTORS.get(cls) or CONSTRUCTORS.get(f"{cls.__module__}.{cls.__qualname__}")
    if rule is not None:
        return apply_rule(ctx, cls, rule, args, kwargs)
    if has_python_method(ctx, type(cls), "__call__") and not issubclass(cls, enum.Enum):
        return (
            get_attribute(ctx, ClassVariable(cls), "__class__")
            .get_attr(ctx, "__call__")
            .call(ctx, [ClassVariable(cls), *args], kwargs)
        )
    made = make_context(ctx, cls, args, kwargs)
    if made is not None:
        return made
    if typing.is_typeddict(cls):
        return construct(ctx, dict, args, kwargs)
    if cls is BaseExceptionGroup and len(args) == 2:
        plain = all(issubclass(error.python_type(), Exception) for error in args[1].unpack(ctx))
        return construct_exception(ctx, ExceptionGroup if plain else cls, args, kwargs)
    if issubclass(cls, BaseException):
        return construct_exception(ctx, cls, args, kwargs)
    if issubclass(cls, enum.Enum):
        return construct_member(ctx, cls, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return construct_named_tuple(ctx, cls, args, kwargs)
    return construct_user(ctx, cls, args, kwargs)


def construct_member(ctx: Context, cls: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The member of an enumeration that has a value."""
    value = args[0].as_constant(ctx) if len(args) == 1 else None
    if (
        len(args) == 1
        and not kwargs
        and is_constant_value(value)
        and value not in cls._value2member_map_
    ):
        made = _missing_member(ctx, cls, args[0])
        if made is not None:
            return made
    made = fold_call(ctx, cls, args, kwargs)
    if is_constant_value(value) and value in cls._value2member_map_:
        known = ItemSource(ConstSource(cls._value2member_map_), value)
        ctx.guards.require(known, GuardKind.IDENTITY, cls._value2member_map_[value])
    return made


def _missing_member(ctx: Context, cls: Any, value: VariableTracker) -> VariableTracker | None:
    """The result of an enumeration's own ``_missing_`` for a value that no member has."""
    found = require_class_attribute(ctx, cls, "_missing_")
    if (
        not isinstance(getattr(found, "__func__", None), types.FunctionType)
        or found.__func__.__module__ == "enum"
    ):
        return None
    made = get_attribute(ctx, ClassVariable(cls), "_missing_").call(ctx, [value], {})
    if isinstance(made, ConstantVariable) and isinstance(made.value, cls):
        return made
    text = f"{value.as_constant(ctx)!r} is not a valid {cls.__qualname__}"
    return raise_error(ctx, ValueError, text)


_WITHOUT_KEYWORDS = (int, float, str, tuple, frozenset)
"""Built-in types whose ``__new__`` refuses keyword arguments that only a subclass's ``__init__``
accepts.
"""


def construct_user(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    """An object of a class written in Python."""
    for name in ("__new__", "__init__", "__abstractmethods__"):
        find_special(ctx, cls, name)
    if has_special(ctx, cls, "__del__"):
        raise GraphBreak(
            "BD019",
            f"{cls.__qualname__} has __del__",
            "construct it outside the compiled region: when it is deleted would change",
        )
    if getattr(cls, "__abstractmethods__", None):
        fold_call(ctx, cls, [])  # raises the TypeError that names the abstract methods
    maker = cls.__new__
    base = native_base(cls)
    if isinstance(maker, types.FunctionType):
        made = get_attribute(ctx, ClassVariable(cls), "__new__").call(
            ctx, [ClassVariable(cls), *args], kwargs
        )
        if not issubclass(made.python_type(), cls):
            return made
    elif base in (int, float, str) and not isinstance(cls.__init__, types.FunctionType):
        return new_object(ctx, cls, args) if not kwargs else fold_call(ctx, cls, args, kwargs)
    elif maker is base.__new__ and not (kwargs and base in _WITHOUT_KEYWORDS):
        made = new_object(ctx, cls, args)
    else:
        raise GraphBreak("BD019", f"construction of {cls.__module__}.{cls.__qualname__}")
    immutable = isinstance(made, DerivedVariable) and isinstance(made.contents, ConstantVariable)
    if isinstance(cls.__init__, types.FunctionType) or (
        isinstance(made, DerivedVariable) and not immutable
    ):
        accepted("__init__", get_attribute(ctx, made, "__init__").call(ctx, args, kwargs))
        if isinstance(made, WrapperDraft):
            return finish_wrapper(ctx, made)
    elif isinstance(made, WrapperDraft):
        return finish_wrapper(ctx, made)
    elif (args or kwargs) and base is object and maker is object.__new__:
        raise_error(ctx, TypeError, f"{cls.__name__}() takes no arguments")
    return made


def new_object(ctx: Context, cls: type, args: Args | None = None) -> VariableTracker:
    """``base.__new__(cls, *args)`` for the first base written in C."""
    base = native_base(cls)
    if base is not object:
        return new_derived(ctx, cls, base, args or [])
    kind = NNModuleVariable if issubclass(cls, torch.nn.Module) else UserObjectVariable
    return kind(Identity(cls))


def construct_exception(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    """An exception object."""
    error: Any = new_exception(ctx, cls, args)
    for name in ("__new__", "__init__"):
        find_special(ctx, cls, name)
    if isinstance(cls.__init__, types.FunctionType):
        accepted("__init__", get_attribute(ctx, error, "__init__").call(ctx, args, kwargs))
    elif kwargs and not (
        issubclass(native_base(cls), (AttributeError, NameError, ImportError))
        and set(kwargs) <= _KNOWN_BY_NAME
    ):
        raise GraphBreak("BD019", f"{cls.__qualname__} with keyword arguments")
    else:
        for name, value in kwargs.items():
            ctx.effects.write((error.key, name), value)
    return error


_KNOWN_BY_NAME = {"name", "obj", "path"}


def construct_named_tuple(ctx: Context, cls: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    """A ``namedtuple``: by its fields, or by a subclass's ``__new__``."""
    index, maker = find_special(ctx, cls, "__new__")
    if cls.__mro__[index].__bases__ != (tuple,):
        return get_attribute(ctx, ClassVariable(cls), "__new__").call(
            ctx, [ClassVariable(cls), *args], kwargs
        )
    try:
        cls.__new__(cls, *args, **kwargs)  # fields accept any value; this checks the arguments
    except TypeError as error:
        return raise_error(ctx, TypeError, *error.args)
    given = {**dict(zip(cls._fields, args)), **kwargs}
    maker = get_attribute(ctx, ClassVariable(cls), "__new__")
    defaults = maker.defaults if isinstance(maker, FunctionVariable) else ()
    given = dict(zip(reversed(cls._fields), reversed(defaults))) | given
    return TupleVariable(tuple(realize(ctx, given[field]) for field in cls._fields), cls)


@evaluates_call(collections.namedtuple)
def make_named_tuple_class(
    ctx: Context, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    values, options = constants(ctx, args, kwargs)
    assert ctx.frame is not None
    make: Any = collections.namedtuple
    options.setdefault("module", ctx.frame.names.mapping.get("__name__"))
    with raising(ctx, TypeError, ValueError):
        return ClassVariable(make(*values, **options))


@constructs(functools.partial)
def make_partial(
    ctx: Context, function: VariableTracker, /, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    if isinstance(function, PartialVariable):
        args, named = (*function.args, *args), {**function.named(ctx), **named}
        function = function.function
    return PartialVariable(
        function, args, new_dict(ctx, [(ConstantVariable(name), x) for name, x in named.items()])
    )


constructs(types.MethodType)(lambda ctx, function, owner: BoundMethodVariable(function, owner))


constructs(types.MappingProxyType)(lambda ctx, mapping: ProxyVariable(mapping))


@constructs(types.SimpleNamespace)
def make_namespace(ctx: Context, /, **named: VariableTracker) -> VariableTracker:
    made = UserObjectVariable(Identity(types.SimpleNamespace))
    for name, value in named.items():
        made.store(ctx, name, value)
    return made


# Alternative constructors of dates and decimals that do not read the clock.
_MAKING = ("fromisoformat", "fromisocalendar", "fromordinal", "combine", "strptime", "from_float")


def _from_keys(
    ctx: Context, cls: type, function: Any, args: Args, kwargs: Kwargs
) -> VariableTracker:
    """``dict.fromkeys``; only OrderedDict's accepts keywords."""
    named = {**dict(zip(("iterable", "value"), args)), **kwargs}
    fits = (
        "iterable" in named
        and len(named) == len(args) + len(kwargs)
        and set(named) <= {"iterable", "value"}
    )
    if not fits or (kwargs and not function.__qualname__.startswith("OrderedDict.")):
        raise GraphBreak("BD007", f"{function.__qualname__} with these arguments")
    made = construct(ctx, cls, [], {})
    for key in named["iterable"].unpack(ctx):
        made.set_item(ctx, key, named.get("value", NONE))
    return made


def call_class_method(
    ctx: Context, cls: type, function: Any, args: Any, kwargs: Any
) -> VariableTracker:
    """``dict.fromkeys`` and other class methods written in C."""
    rule = FUNCTIONS.find(find_in_class(cls, function.__name__)[1])
    if rule is not None:
        return apply_rule(ctx, function, rule, [new_class(ctx, cls), *args], kwargs)
    if function.__name__ == "fromkeys" and issubclass(cls, dict):
        return _from_keys(ctx, cls, function, args, kwargs)
    if kwargs and function.__name__ in ("from_iterable", "__new__"):
        raise GraphBreak("BD007", f"{cls.__qualname__}.{function.__name__} with keyword arguments")
    if function.__name__ == "from_iterable" and cls is itertools.chain:
        return instantiate(ctx, ChainFromIterable, args, kwargs)
    if function.__name__ == "__new__" and args and isinstance(args[0], ClassVariable):
        wanted: type = args[0].value
        if cls is tuple and is_plain_tuple(wanted):
            return new_tuple(args[1].unpack(ctx), wanted)
        if cls is object or native_base(wanted) is cls:
            if wanted is cls:
                return construct(ctx, wanted, args[1:], kwargs)
            return new_object(ctx, wanted, args[1:])
    if cls.__module__ in ("builtins", "torch") or (cls in BY_TEXT and function.__name__ in _MAKING):
        return fold_call(ctx, function, args, kwargs)
    raise GraphBreak("BD002", f"call of {cls.__qualname__}.{function.__name__}")
