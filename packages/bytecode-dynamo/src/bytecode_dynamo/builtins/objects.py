"""Methods of ``object`` and of exceptions."""

from __future__ import annotations

import sys

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.polyfills import exception_groups as groups
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING
from bytecode_dynamo.state.protocol import (
    call_known,
    fold_call,
    get_attribute,
    handled_exception,
    new_class,
    new_list,
    raise_error,
    written_as,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.exception import TRACEBACK, ExceptionVariable
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .comparison import is_equal, is_same
from .construct import new_object

Value = VariableTracker


@evaluates_call(object.__setattr__)
def object_setattr(ctx: Context, owner: Value, name: Value, value: Value) -> None:
    if not isinstance(owner, UserObjectVariable):
        owner.set_attr(ctx, name.as_constant(ctx), value)
        return
    owner.store(ctx, name.as_constant(ctx), value)


@evaluates_call(object.__delattr__)
def object_delattr(ctx: Context, owner: Value, name: Value) -> None:
    if not isinstance(owner, UserObjectVariable):
        raise GraphBreak("BD020", f"deletion of an attribute of {owner.describe()}")
    owner.remove(ctx, name.as_constant(ctx))


@evaluates_call(object.__getattribute__)
def object_getattribute(ctx: Context, owner: Value, name: Value) -> Value:
    if isinstance(owner, UserObjectVariable):
        return owner.plain_get_attr(ctx, name.as_constant(ctx), hook=False)
    return owner.get_attr(ctx, name.as_constant(ctx))


@evaluates_call(object.__init__, object.__init_subclass__)
def object_init(ctx: Context, /, *args: Value, **kwargs: Value) -> None:
    pass


@evaluates_call(object.__new__)
def object_new(ctx: Context, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(cls, ClassVariable):
        return raise_error(
            ctx,
            TypeError,
            f"object.__new__(X): X is not a type object ({cls.python_type().__name__})",
        )
    return new_object(ctx, cls.value)


@evaluates_call(object.__eq__)
def object_eq(ctx: Context, left: Value, right: Value) -> Value:
    return ConstantVariable(True if is_same(ctx, left, right) else NotImplemented)


evaluates_call(object.__ne__)(
    lambda ctx, left, right: ConstantVariable(not is_equal(ctx, left, right))
)


@evaluates_call(*{BaseException.__init__, Exception.__init__})  # one function from 3.14 on
def exception_init(ctx: Context, error: Value, *args: Value) -> None:
    error.set_attr(ctx, "args", new_tuple(args))


@evaluates_call(KeyError.__str__)
def key_error_str(ctx: Context, error: Value) -> Value | None:
    args = get_attribute(ctx, error, "args").unpack(ctx)
    return call_known(ctx, repr, [args[0]]) if len(args) == 1 else exception_str(ctx, error)


@evaluates_call(
    BaseException.__str__,
    *{error.__str__ for error in (AttributeError, NameError, ImportError)}
    - {BaseException.__str__},
)
def exception_str(ctx: Context, error: Value) -> Value:
    args = get_attribute(ctx, error, "args").unpack(ctx)
    if not args:
        return ConstantVariable("")
    return call_known(ctx, str, [args[0] if len(args) == 1 else new_tuple(args)])


_OWN_TEXTS = (UnicodeEncodeError, UnicodeDecodeError, UnicodeTranslateError, OSError)


@evaluates_call(*{error.__str__ for error in _OWN_TEXTS})
def exception_own_str(ctx: Context, error: Value) -> Value:
    return fold_call(
        ctx,
        lambda *args: str(error.python_type()(*args)),
        get_attribute(ctx, error, "args").unpack(ctx),
    )


evaluates_call(BaseExceptionGroup.__str__)(written_as(polyfills.describe_group))


@evaluates_call(BaseException.__repr__)
def exception_repr(ctx: Context, error: Value) -> Value:
    args = [
        call_known(ctx, repr, [arg]).as_constant(ctx)
        for arg in get_attribute(ctx, error, "args").unpack(ctx)
    ]
    return ConstantVariable(f"{error.python_type().__name__}({', '.join(args)})")


for _name in ("split", "subgroup", "derive"):
    evaluates_call(getattr(BaseExceptionGroup, _name))(written_as(getattr(groups, _name)))


@evaluates_call(sys.exc_info)
def exc_info(ctx: Context) -> Value:
    handled = handled_exception(ctx)
    if handled is None:
        return new_tuple([NONE] * 3)
    return new_tuple([new_class(ctx, handled.python_type()), handled, TRACEBACK])


evaluates_call(sys.exception)(lambda ctx: handled_exception(ctx))


@evaluates_call(BaseException.add_note)
def add_note(ctx: Context, error: Value, note: Value) -> None:
    if not isinstance(error, ExceptionVariable):
        raise GraphBreak("BD007", f"add_note of {error.describe()}")
    if ctx.effects.read((error.key, "__notes__")) is MISSING:
        ctx.effects.write((error.key, "__notes__"), new_list(ctx, []))
    get_attribute(ctx, error, "__notes__").call_method(ctx, "append", [note], {})
