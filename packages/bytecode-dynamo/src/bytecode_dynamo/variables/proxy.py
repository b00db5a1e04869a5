"""Read-only views of mappings."""

from __future__ import annotations

import types
from dataclasses import dataclass

from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import raise_error, raise_no_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Variable


@dataclass(frozen=True, slots=True, eq=False)
class ProxyVariable(Variable):
    """``types.MappingProxyType``: a read-only view."""

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

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        raise_error(ctx, TypeError, "'mappingproxy' object does not support item assignment")

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        raise_error(ctx, TypeError, "'mappingproxy' object does not support item deletion")

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if not hasattr(types.MappingProxyType, name):
            return raise_no_attribute(ctx, types.MappingProxyType, name)
        return self.base.get_attr(ctx, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(types.MappingProxyType, self.base)
