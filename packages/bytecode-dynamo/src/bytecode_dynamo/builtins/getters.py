"""``operator.itemgetter`` and its relatives: small callable objects."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from bytecode_dynamo.function_table import Constructor, constructs
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import fold_call, get_attribute
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, Kwargs, Variable
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.sequence import new_tuple


@dataclass(frozen=True, slots=True, eq=False)
class GetterVariable(Variable):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller``."""

    cls: type
    args: tuple[VariableTracker, ...]
    keywords: tuple[tuple[str, VariableTracker], ...] = ()

    def python_type(self) -> type:
        return self.cls

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        (owner,) = args
        if self.cls is operator.methodcaller:
            name, *rest = self.args
            return owner.call_method(ctx, name.as_constant(ctx), rest, dict(self.keywords))
        found = [self._get(ctx, owner, key) for key in self.args]
        return found[0] if len(found) == 1 else new_tuple(found)

    def _get(self, ctx: Context, owner: VariableTracker, key: VariableTracker) -> VariableTracker:
        if self.cls is operator.itemgetter:
            return owner.get_item(ctx, key)
        for name in key.as_constant(ctx).split("."):
            owner = get_attribute(ctx, owner, name)
        return owner

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call(ConstantVariable(self.cls), self.args, self.keywords)


def _make_getter(cls: type) -> Constructor:
    def rule(ctx: Context, *args: VariableTracker, **named: VariableTracker) -> VariableTracker:
        if cls is not operator.itemgetter and not all(arg.python_type() is str for arg in args[:1]):
            return fold_call(ctx, cls, args, named)
        return GetterVariable(cls, args, tuple(named.items()))

    return rule


for _getter in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    constructs(_getter)(_make_getter(_getter))
