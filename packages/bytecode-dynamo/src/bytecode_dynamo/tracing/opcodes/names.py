"""Globals, attributes, names of class bodies."""

from __future__ import annotations

from typing import Any

from bytecode_dynamo.bytecode import NULL_BELOW_CALLABLE, Instruction, Op, SuperAttr
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import (
    NamespaceSource,
)
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING
from bytecode_dynamo.state.frame import Frame, GlobalNames
from bytecode_dynamo.state.protocol import (
    get_attribute,
    new_dict,
    new_exception,
    observed,
    wrap_value,
)
from bytecode_dynamo.state.requirements import globals_identity, require_no_global
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import NULL, realize
from bytecode_dynamo.variables.class_object import ClassVariable, SuperVariable
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.mapping import DictVariable

from .stack import load_deref
from .table import evaluates


def push_callable(frame: Frame, value: VariableTracker) -> None:
    """Push a callable with its NULL in the order of this interpreter."""
    frame.stack += [NULL, value] if NULL_BELOW_CALLABLE else [value, NULL]


@evaluates(Op.LOAD_GLOBAL)
def load_global(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    name, wants_null = instruction.arg
    value = read_global(ctx, frame, name)
    if wants_null:
        push_callable(frame, value)
    else:
        frame.push(value)


def read_global(ctx: Context, frame: Frame, name: str) -> VariableTracker:
    """A global variable, including writes of this frame and inlined ones."""
    names = frame.names
    written = ctx.effects.read((globals_identity(ctx, names.mapping), name))
    if written is not MISSING and written is not DELETED:
        return written
    if written is MISSING and name in names.mapping:
        return wrap_value(ctx, names.mapping[name], names.source(name))
    if name in names.builtins:
        return wrap_builtin_name(ctx, names, name)
    if written is MISSING:
        ctx.guards.require(names.base or NamespaceSource(False), GuardKind.NO_ATTR, name)
    ctx.guards.require(NamespaceSource(True), GuardKind.NO_ATTR, name)
    error: Any = new_exception(ctx, NameError, [ConstantVariable(f"name {name!r} is not defined")])
    error.note_missing(ctx, name)
    raise observed(ctx, error)


@evaluates(Op.STORE_GLOBAL)
def store_global(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    ctx.effects.write(
        (globals_identity(ctx, frame.names.mapping), instruction.arg), frame.stack.pop()
    )


@evaluates(Op.DELETE_GLOBAL)
def delete_global(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    read_global(ctx, frame, instruction.arg)
    ctx.effects.write((globals_identity(ctx, frame.names.mapping), instruction.arg), DELETED)


@evaluates(Op.LOAD_ATTR)
def load_attr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    frame.push(get_attribute(ctx, owner, instruction.arg))


@evaluates(Op.LOAD_METHOD)
def load_method(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    push_callable(frame, get_attribute(ctx, owner, instruction.arg))


@evaluates(Op.LOAD_SUPER_ATTR)
def load_super_attr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    arg: SuperAttr = instruction.arg
    called, cls, owner = frame.pop_many(3)
    if not (
        isinstance(called, ClassVariable)
        and called.value is super
        and isinstance(cls, ClassVariable)
    ):
        raise GraphBreak(
            "BD007",
            "super is not the built-in one",
            "call the base class's method by the name of the class",
        )
    found = SuperVariable(cls.value, owner).get_attr(ctx, arg.name)
    if arg.method:
        push_callable(frame, found)
    else:
        frame.push(found)


@evaluates(Op.STORE_ATTR)
def store_attr(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    value, owner = frame.pop_many(2)
    owner.set_attr(ctx, instruction.arg, value)


evaluates(Op.DELETE_ATTR)(
    lambda ctx, frame, instruction: frame.stack.pop().del_attr(ctx, instruction.arg)
)


# -- class bodies ----------------------------------------------------------------------------------


@evaluates(Op.STORE_NAME)
def store_name(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    _namespace(frame).set_item(ctx, ConstantVariable(instruction.arg), frame.stack.pop())


evaluates(Op.DELETE_NAME)(
    lambda ctx, frame, instruction: _namespace(frame).del_item(
        ctx, ConstantVariable(instruction.arg)
    )
)


@evaluates(Op.LOAD_NAME)
def load_name(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    found = _namespace(frame).get(ctx, ConstantVariable(instruction.arg))
    frame.push(read_global(ctx, frame, instruction.arg) if found is None else realize(ctx, found))


@evaluates(Op.LOAD_CLASSDEREF)
def load_class_deref(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    found = _namespace(frame).get(ctx, ConstantVariable(instruction.arg))
    if found is None:
        load_deref(ctx, frame, instruction)
    else:
        frame.push(realize(ctx, found))


evaluates(Op.LOAD_LOCALS)(lambda ctx, frame, instruction: frame.push(_namespace(frame)))


@evaluates(Op.LOAD_FROM_DICT_OR_DEREF, Op.LOAD_FROM_DICT_OR_GLOBALS)
def load_from_dict(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    namespace = frame.stack.pop()
    key = ConstantVariable(instruction.arg)
    if namespace.contains(ctx, key):
        frame.push(namespace.get_item(ctx, key))
    elif instruction.op is Op.LOAD_FROM_DICT_OR_DEREF:
        load_deref(ctx, frame, instruction)
    else:
        frame.push(read_global(ctx, frame, instruction.arg))


@evaluates(Op.SETUP_ANNOTATIONS)
def setup_annotations(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    key = ConstantVariable("__annotations__")
    if not _namespace(frame).contains(ctx, key):
        _namespace(frame).set_item(ctx, key, new_dict(ctx, []))


def _namespace(frame: Frame) -> DictVariable:
    if frame.namespace is None:
        raise GraphBreak("BD006", "a name outside of functions and class statements")
    return frame.namespace


def wrap_builtin_name(ctx: Context, names: GlobalNames, name: str) -> VariableTracker:
    """A built-in, found because the globals do not have the name."""
    value = names.builtins[name]
    if not names.is_root:
        require_no_global(ctx, names, name)
    return wrap_value(ctx, value, names.source(name))
