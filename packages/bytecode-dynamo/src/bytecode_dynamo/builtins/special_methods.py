"""Functions and getters of the operator module, and special methods of built-in types by name."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs_each, evaluates_call
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    call_known,
    fold_call,
    get_attribute,
    next_item,
    raise_error,
)
from bytecode_dynamo.state.tracker import Args, VariableTracker
from bytecode_dynamo.variables.base import Kwargs, Variable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.derived import native
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import ListVariable, SequenceVariable, new_tuple
from bytecode_dynamo.variables.sets import SetVariable, members_of
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from .comparison import COMPARE, compare, is_identical
from .operators import BINARY, UNARY, binary, family, unary


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


@constructs_each(operator.itemgetter, operator.attrgetter, operator.methodcaller)
def make_getter(
    ctx: Context, cls: type, /, *args: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    if cls is not operator.itemgetter and not all(arg.python_type() is str for arg in args[:1]):
        return fold_call(ctx, cls, args, named)
    return GetterVariable(cls, args, tuple(named.items()))


def _register() -> None:
    for symbol, (function, in_place_function, _) in BINARY.items():
        evaluates_call(function)(_binary_rule(symbol))
        evaluates_call(in_place_function)(_binary_rule(symbol + "="))
    for symbol, (function, *_) in COMPARE.items():
        evaluates_call(function)(_compare_rule(symbol))
    for symbol, (function, _) in UNARY.items():
        evaluates_call(function)(_unary_rule(symbol))
    evaluates_call(operator.not_)(_unary_rule("not"))


def _binary_rule(symbol: str) -> Any:
    return lambda ctx, left, right: binary(ctx, symbol, left, right)


def _compare_rule(symbol: str) -> Any:
    return lambda ctx, left, right: compare(ctx, symbol, left, right)


def _unary_rule(symbol: str) -> Any:
    return lambda ctx, value: unary(ctx, symbol, value)


_register()


evaluates_call(operator.call)(
    lambda ctx, function, /, *args, **kwargs: function.call(ctx, list(args), kwargs)
)
evaluates_call(operator.concat)(_binary_rule("+"))
evaluates_call(operator.iconcat)(_binary_rule("+="))
evaluates_call(operator.is_)(
    lambda ctx, left, right: ConstantVariable(is_identical(ctx, left, right))
)
evaluates_call(operator.is_not)(
    lambda ctx, left, right: ConstantVariable(not is_identical(ctx, left, right))
)


@evaluates_call(operator.index)
def index(ctx: Context, value: VariableTracker) -> VariableTracker:
    if isinstance(value, UserObjectVariable):
        return value.ask(ctx, "__index__", [])
    if not hasattr(value.python_type(), "__index__"):
        raise_error(
            ctx,
            TypeError,
            f"{value.python_type().__name__!r} object cannot be interpreted as an integer",
        )
    if isinstance(value, SymbolicVariable):
        return value
    return value.call_method(ctx, "__index__", [], {})


# -- special methods of built-in types -------------------------------------------------------------


def _matching(rule: Any, name: str) -> Any:
    """The rule of a binary special method: NotImplemented for foreign operands; a tensor decides
    itself.
    """

    def special(ctx: Context, left: VariableTracker, right: VariableTracker) -> VariableTracker:
        if isinstance(left, ConstantVariable):
            return fold_call(ctx, getattr(left.python_type(), name), [left, right])
        if isinstance(left, TensorVariable):
            return left.call_method(ctx, name, [right], {})
        if family(left) is not family(right) and not (
            isinstance(left, SequenceVariable) and name.endswith("mul__")
        ):
            return ConstantVariable(NotImplemented)
        return rule(ctx, left, native(right))

    return special


DUNDERS: dict[str, Callable[..., VariableTracker | None]] = {
    "__len__": lambda ctx, value: value.length(ctx),
    "__bool__": lambda ctx, value: ConstantVariable(value.truth(ctx)),
    "__getitem__": lambda ctx, value, key: value.get_item(ctx, key),
    "__setitem__": lambda ctx, value, key, item: value.set_item(ctx, key, item),
    "__delitem__": lambda ctx, value, key: value.del_item(ctx, key),
    "__contains__": lambda ctx, value, item: ConstantVariable(value.contains(ctx, item)),
    "__iter__": lambda ctx, value: value.iterate(ctx),
    "__next__": lambda ctx, value: next_item(ctx, value),
    "__reversed__": lambda ctx, value: call_known(ctx, reversed, [value]),
    "__hash__": lambda ctx, value: call_known(ctx, hash, [value]),
    "__repr__": lambda ctx, value: call_known(ctx, repr, [value]),
    "__str__": lambda ctx, value: call_known(ctx, str, [value]),
    "__format__": lambda ctx, value, spec: call_known(ctx, format, [value, spec]),
    "__init__": lambda ctx, value, /, *args, **named: initialize(ctx, value, args, named),
    **{
        method: _matching(_compare_rule(symbol), method)
        for symbol, (_, method, _) in COMPARE.items()
    },
    **{
        f"__{name}__": _matching(_binary_rule(symbol), f"__{name}__")
        for symbol, (_, _, name) in BINARY.items()
    },
    **{f"__i{name}__": _binary_rule(symbol + "=") for symbol, (_, _, name) in BINARY.items()},
    **{
        f"__r{name}__": _matching(
            lambda ctx, left, right, symbol=symbol: binary(ctx, symbol, right, left), f"__r{name}__"
        )
        for symbol, (_, _, name) in BINARY.items()
    },
    **{method: _unary_rule(symbol) for symbol, (_, method) in UNARY.items()},
}
for _name in ("getitem", "setitem", "delitem", "contains"):
    evaluates_call(getattr(operator, _name))(DUNDERS[f"__{_name}__"])
evaluates_call(operator.truth)(DUNDERS["__bool__"])


def initialize(ctx: Context, value: VariableTracker, args: Args, named: dict[str, Any]) -> None:
    """``list.__init__(self, items)`` and its relatives."""
    if isinstance(value, DictVariable):
        if value.key.cls is collections.defaultdict and args:
            raise GraphBreak("BD019", "a subclass of defaultdict with a factory")
        value.call_method(ctx, "update", list(args), named)
    elif isinstance(value, ListVariable):
        value.replace(ctx, args[0].unpack(ctx) if args else ())
    elif isinstance(value, SetVariable) and args:
        ctx.effects.write(value.key, members_of(ctx, args[0]))


@protocol.call_special.implement
def _call_special(ctx: Context, owner: VariableTracker, name: str, args: Args) -> VariableTracker:
    """``owner.__getitem__(key)`` and its relatives, by the capability of the tracker."""
    return DUNDERS[name](ctx, owner, *args) or NONE
