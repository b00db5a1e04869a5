"""Weak references: what they refer to is found again by calling them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.source import ReferentSource, Source
from bytecode_dynamo.variables.base import Args, Kwargs, VariableTracker
from bytecode_dynamo.variables.wrap import tracker_for

from .construct import constructs

if TYPE_CHECKING:
    from bytecode_dynamo.codegen import Codegen
    from bytecode_dynamo.context import Context


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceVariable(VariableTracker):
    """A ``weakref.ref`` to a living object."""

    referent: VariableTracker

    def python_type(self) -> type:
        return weakref.ref

    def truth(self, ctx: Context) -> bool:
        return True

    def hash_key(self, ctx: Context) -> Hashable:
        return ("reference", self.referent.hash_key(ctx))

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.referent

    def reconstruct(self, gen: Codegen) -> None:
        gen.emitter.load_callee_const(weakref.ref)
        gen(self.referent)
        gen.emitter.call(1)


@tracker_for(weakref.ref)
def wrap_reference(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value) is not weakref.ref:
        return ctx.wrap_object(value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, weakref.ref)
    referent = ctx.wrap(value(), ReferentSource(source))
    return ctx.effects.remember(value, ReferenceVariable(referent, source=source))


@constructs(weakref.ref)
def make_reference(ctx: Context, target: VariableTracker, *callback: VariableTracker) -> VariableTracker:
    if callback:
        raise GraphBreak("BD019", "a weak reference with a callback")
    return ReferenceVariable(target)
