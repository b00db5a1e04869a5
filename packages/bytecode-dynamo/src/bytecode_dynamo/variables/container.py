"""Values of built-in types whose methods are rules of a table."""

from __future__ import annotations

from typing import Any

from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import apply_rule, class_attribute
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker

from .base import BoundRuleVariable, MethodTable, Variable


class ContainerVariable(Variable):
    """A value of a built-in type whose methods are rules of a table."""

    __slots__ = ()

    def methods(self) -> MethodTable:
        """Methods of the type."""
        raise NotImplementedError

    def example(self) -> Any:
        """An empty value of the type."""
        return self.python_type()()

    def has_method(self, name: str) -> bool:
        """Whether there is a rule for a method."""
        return self.methods().find(name) is not None

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if self.has_method(name):
            return BoundRuleVariable(self, name)
        return class_attribute(ctx, self, self.python_type(), name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        rule = self.methods().find(name)
        if rule is None:
            return self.get_attr(ctx, name).call(ctx, args, kwargs)
        return apply_rule(name, rule, ctx, [self, *args], kwargs)
