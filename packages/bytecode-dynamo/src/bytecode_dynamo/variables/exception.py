"""Exceptions and their tracebacks."""

from __future__ import annotations

import types
from dataclasses import dataclass

from bytecode_dynamo.class_flags import native_base
from bytecode_dynamo.errors import GraphBreak, ObservedException
from bytecode_dynamo.guards.source import AttrSource
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import fold_call, new_class, wrap_value
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.userobject import OpaqueVariable, UserObjectVariable

from .attribute import find_in_class, find_special
from .base import Args, BoundRuleVariable, Kwargs
from .constant import NONE, ConstantVariable
from .sequence import new_tuple
from .wrap import by_type, tracker_for


@dataclass(frozen=True, slots=True, eq=False)
class ExceptionVariable(UserObjectVariable):
    """An exception object; its arguments are the attribute ``args``."""

    def arguments(self, ctx: Context) -> list[VariableTracker]:
        """The tuple ``args``."""
        held = ctx.effects.read((self.key, "args"))
        if held is MISSING:
            if not self.key.exists or self.key.source is None:
                return []
            return wrap_value(ctx, self.key.value.args, AttrSource(self.key.source, "args")).unpack(
                ctx
            )
        return held.unpack(ctx)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if (
            name == "args"
            and find_special(ctx, self.key.cls, name)[1] is BaseException.__dict__[name]
        ):
            return new_tuple(self.arguments(ctx))
        if name in ("__cause__", "__context__", "__traceback__", "__suppress_context__"):
            held = ctx.effects.read((self.key, name))
            if name == "__traceback__" and self.key.raised:
                return TRACEBACK
            if held is MISSING and self.key.exists:
                raise GraphBreak("BD014", f"{name} of {self.describe()}")
            if held is not MISSING:
                return held
            return ConstantVariable(False if name == "__suppress_context__" else None)
        if name == "value" and self.key.cls is StopIteration:
            return next(iter(self.arguments(ctx)), NONE)
        if name == "with_traceback":
            return BoundRuleVariable(self, name)
        if name in ("message", "exceptions") and issubclass(self.key.cls, BaseExceptionGroup):
            message, exceptions = self.arguments(ctx)
            return message if name == "message" else new_tuple(exceptions.unpack(ctx))
        found = find_in_class(self.key.cls, name)[1]
        written = ctx.effects.read((self.key, name)) is not MISSING
        if (
            isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType))
            and not written
        ):
            return self._attribute_in_c(ctx, name)
        return UserObjectVariable.get_attr(self, ctx, name)

    def _attribute_in_c(self, ctx: Context, name: str) -> VariableTracker:
        """An attribute such as ``OSError.errno`` that C code derives from the arguments."""
        base = native_base(self.key.cls)
        if self.key.exists:
            raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")
        if issubclass(base, (AttributeError, NameError, ImportError)):
            return NONE  # keyword-only
        return fold_call(ctx, lambda *args: getattr(base(*args), name), self.arguments(ctx))

    def note_missing(self, ctx: Context, name: str, owner: VariableTracker | None = None) -> None:
        """Set an AttributeError's or NameError's ``name`` and ``obj`` if they are missing."""
        if self.key.exists or ctx.effects.read((self.key, "name")) is not MISSING:
            return
        ctx.effects.write((self.key, "name"), ConstantVariable(name))
        if owner is not None:
            ctx.effects.write((self.key, "obj"), owner)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "with_traceback":
            return self
        return UserObjectVariable.call_method(self, ctx, name, args, kwargs)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if name == "__traceback__" and (value is TRACEBACK or not self.key.exists):
            return  # raising the exception creates a new one
        if name in ("__cause__", "__context__", "__suppress_context__", "__traceback__", "args"):
            ctx.effects.write((self.key, name), value)
            return
        UserObjectVariable.set_attr(self, ctx, name, value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        cls = self.key.cls
        gen.call_const(rebuilding.make_exception, native_base(cls), cls, *self.arguments(gen.ctx))
        gen.keep(self.key)
        gen.fill_attributes(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class TracebackVariable(OpaqueVariable):
    """The traceback of an exception raised while evaluating; only its existence is known."""

    def truth(self, ctx: Context) -> bool:
        return True


TRACEBACK = TracebackVariable(types.TracebackType, "the traceback of an exception")


tracker_for(BaseException)(by_type(ExceptionVariable))


@protocol.get_attribute.implement
def _get_attribute(ctx: Context, owner: VariableTracker, name: str) -> VariableTracker:
    """``owner.name``."""
    if name == "__class__":
        return new_class(ctx, owner.class_of(ctx))
    try:
        return owner.get_attr(ctx, name)
    except ObservedException as raised:
        error = raised.value
        if isinstance(error, ExceptionVariable) and issubclass(error.key.cls, AttributeError):
            error.note_missing(ctx, name, owner)
        raise


@protocol.new_exception.implement
def _new_exception(ctx: Context, cls: type, args: Args) -> ExceptionVariable:
    """A new exception object."""
    error = ExceptionVariable(Identity(cls))
    ctx.effects.write((error.key, "args"), new_tuple(args))
    return error
