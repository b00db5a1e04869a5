"""Weak references and context variables: guards read their current value."""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, evaluates_call
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AppliedSource, LocalSource, ReferentSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import raise_exception, wrap_value
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, KeyedVariable, Kwargs, Variable
from bytecode_dynamo.variables.constant import NONE
from bytecode_dynamo.variables.wrap import tracker_for, wrap_object


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceVariable(Variable):
    """A ``weakref.ref`` to a living object."""

    referent: VariableTracker
    callback: tuple[VariableTracker, ...] = ()

    def python_type(self) -> type:
        return weakref.ref

    def hash_key(self, ctx: Context) -> Hashable:
        return ("reference", self.referent.hash_key(ctx))

    def identity(self) -> object:
        """An object has one reference without a callback."""
        return self if self.callback else f"reference to {id(self.referent.identity())}"

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        source = self.referent.source
        direct = source.base if isinstance(source, ReferentSource) else source
        if ctx.resumes and isinstance(direct, LocalSource):
            raise GraphBreak(
                "BD007",
                f"call of a weak reference to {self.referent.describe()}, which may have gone away "
                f"here",
            )
        return self.referent

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(weakref.ref, self.referent, *self.callback)


@tracker_for(weakref.ref)
def wrap_reference(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value) is not weakref.ref:
        return wrap_object(ctx, value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, weakref.ref)
    referent = wrap_value(ctx, value(), ReferentSource(source))
    notifies = value.__callback__ is not None
    same = Answer("{} has a callback", lambda now: now.__callback__ is not None, notifies)
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    callbacks = (NONE,) if notifies else ()
    return ctx.effects.remember(value, ReferenceVariable(referent, callbacks, source=source))


@evaluates_call(contextvars.ContextVar.get)
def context_variable(
    ctx: Context, variable: VariableTracker, *default: VariableTracker
) -> VariableTracker:
    """The value of a context variable, which a guard reads again."""
    key = _existing(variable)
    written = ctx.effects.read((_VALUE, key))
    if written is not MISSING:
        return written
    assert variable.source is not None
    try:
        held = key.value.get(*[_UNSET] * len(default))
    except LookupError:
        held = _UNSET
    if held is not _UNSET:
        return wrap_value(ctx, held, ContextValueSource(variable.source))
    same = Answer("{} is set", lambda now: not _is_unset(now), False)
    ctx.guards.require(variable.source, GuardKind.CUSTOM, same)
    return default[0] if default else raise_exception(ctx, LookupError, [variable])


_UNSET, _VALUE = object(), object()


class ContextValueSource(AppliedSource):
    """The value of a context variable."""

    function, text = contextvars.ContextVar.get, "{}.get()"


def _existing(variable: VariableTracker) -> Identity:
    key = variable.identity()
    if not isinstance(key, Identity) or variable.source is None:
        raise GraphBreak("BD007", f"the value of {variable.describe()}")
    return key


@dataclass(frozen=True, slots=True, eq=False)
class TokenVariable(KeyedVariable):
    """The token that ``ContextVar.set`` returns; building it sets the variable."""

    variable: VariableTracker
    value: VariableTracker
    before: Any

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_method(self.variable, "set", self.value)
        gen.keep(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class ResetVariable(Variable):
    """Resets a context variable after the graph."""

    token: TokenVariable

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_method(self.token.variable, "reset", self.token)


@evaluates_call(contextvars.ContextVar.set)
def set_context_variable(
    ctx: Context, variable: VariableTracker, value: VariableTracker
) -> VariableTracker:
    """Set the variable after the graph, if no function of the program runs in between."""
    key = _existing(variable)
    token = TokenVariable(
        Identity(contextvars.Token), variable, value, ctx.effects.read((_VALUE, key))
    )
    ctx.effects.write((_VALUE, key), value)
    ctx.deferred.add(token)
    return token


@evaluates_call(contextvars.ContextVar.reset)
def reset_context_variable(ctx: Context, variable: VariableTracker, token: VariableTracker) -> None:
    if not isinstance(token, TokenVariable) or token.variable.identity() is not variable.identity():
        raise GraphBreak("BD007", f"reset of {variable.describe()} by {token.describe()}")
    ctx.effects.write((_VALUE, _existing(variable)), token.before)
    ctx.deferred.add(ResetVariable(token))


def _is_unset(variable: contextvars.ContextVar[Any]) -> bool:
    return variable.get(_UNSET) is _UNSET


@constructs(weakref.ref)
def make_reference(
    ctx: Context, target: VariableTracker, *callback: VariableTracker
) -> VariableTracker:
    if target.source is None:
        raise GraphBreak(
            "BD019",
            f"a weak reference to {target.describe()}, which is made here: when it goes away is "
            f"not known",
        )
    return ReferenceVariable(target, callback)
