"""Objects that stand for others: read-only views of mappings, weak references."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bytecode_dynamo.guards import GuardKind
from bytecode_dynamo.source import ReferentSource, Source

from .base import Args, Kwargs, VariableTracker
from .wrap import tracker_for

if TYPE_CHECKING:
    from bytecode_dynamo.codegen import Codegen
    from bytecode_dynamo.context import Context


@dataclass(frozen=True, slots=True, eq=False)
class ProxyVariable(VariableTracker):
    """``types.MappingProxyType``: a mapping that can't be written through it."""

    base: VariableTracker

    def python_type(self) -> type:
        return types.MappingProxyType

    def truth(self, ctx: Context) -> bool:
        return self.base.truth(ctx)

    def length(self, ctx: Context) -> VariableTracker:
        return self.base.length(ctx)

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return self.base.contains(ctx, item)

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return self.base.get_item(ctx, key)

    def iterate(self, ctx: Context) -> VariableTracker:
        return self.base.iterate(ctx)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if not hasattr(types.MappingProxyType, name):
            return ctx.raise_error(AttributeError, f"'mappingproxy' object has no attribute {name!r}")
        return self.base.get_attr(ctx, name)

    def reconstruct(self, gen: Codegen) -> None:
        gen.emitter.load_callee_const(types.MappingProxyType)
        gen(self.base)
        gen.emitter.call(1)


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceVariable(VariableTracker):
    """An existing ``weakref.ref``."""

    value: Any

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> object:
        return self.value

    def truth(self, ctx: Context) -> bool:
        return True

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        assert self.source is not None
        return ctx.wrap(self.value(), ReferentSource(self.source))


@tracker_for(weakref.ReferenceType)
def wrap_reference(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return ctx.effects.remember(value, ReferenceVariable(value, source=source))
