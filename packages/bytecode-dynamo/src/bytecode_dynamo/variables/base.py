"""Bases of trackers, and trackers that stand for no object of the program."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    apply_rule,
    class_attribute,
    is_alike,
    new_value,
    raise_error,
    wrap_value,
)
from bytecode_dynamo.state.tracker import Args, Kwargs, VariableTracker


@dataclass(frozen=True, slots=True, eq=False)
class Variable(VariableTracker):
    """A tracker that refuses what its type doesn't support with the interpreter's error."""

    def has_special(self, *names: str) -> bool:
        """Whether the value's type has one of these methods."""
        return any(name in base.__dict__ for base in self.python_type().__mro__ for name in names)

    def require_method(self, ctx: Context, name: str, otherwise: str) -> None:
        """Raise TypeError in the program if the value's type lacks a method."""
        if not self.has_special(name):
            raise_error(ctx, TypeError, f"{self.python_type().__name__!r} {otherwise}")

    def truth(self, ctx: Context) -> bool:
        return not self.has_special("__bool__", "__len__") or VariableTracker.truth(self, ctx)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        self.require_method(ctx, "__call__", "object is not callable")
        raise GraphBreak("BD002", f"call of {self.describe()}")

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        self.require_method(ctx, "__getitem__", "object is not subscriptable")
        raise GraphBreak("BD007", f"an item of {self.describe()}")

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        self.require_method(ctx, "__setitem__", "object does not support item assignment")
        raise GraphBreak("BD020", f"assignment to an item of {self.describe()}")

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        self.require_method(ctx, "__delitem__", "object doesn't support item deletion")
        raise GraphBreak("BD020", f"deletion of an item of {self.describe()}")

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        return any(is_alike(ctx, element, item) for element in self.each(ctx))


def runs_program(iterable: VariableTracker) -> bool:
    """Whether the program's code may run when items are taken from an iterable: it is an iterator,
    or of a class of the program.
    """
    cls = iterable.python_type()
    return hasattr(cls, "__next__") or cls.__module__ != "builtins"


@dataclass(frozen=True, slots=True, eq=False)
class ValueVariable(Variable):
    """A value that is known itself."""

    always_rebuilt: ClassVar[bool] = True
    value: Any

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> object:
        return self.value

    def as_constant(self, ctx: Context) -> Any:
        return self.value

    def as_proxy(self, ctx: Context) -> Any:
        return self.value

    def hash_key(self, ctx: Context) -> Hashable:
        return self.value

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.load_const(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedVariable(Variable):
    """One mutable object, with its contents in the effects, under its key."""

    key: Identity

    def python_type(self) -> type:
        return self.key.cls

    def identity(self) -> object:
        return self.key


@dataclass(frozen=True, slots=True, eq=False)
class LazyVariable(Variable):
    """A local or container item that was not read yet and needs no guard so far."""

    value: Any = None

    def realize(self, ctx: Context) -> VariableTracker:
        """The real tracker, with its guards."""
        assert self.source is not None
        return wrap_value(ctx, self.value, self.source)

    def reconstruct(self, gen: ValueBuilder) -> None:
        assert self.source is not None
        gen.load_source(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class NullVariable(Variable):
    """The NULL that the interpreter pushes beside callables, or leaves in a cleared local."""

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.emitter.push_null()


NULL = NullVariable()


@dataclass(frozen=True, slots=True, eq=False)
class LastiVariable(Variable):
    """The instruction offset that some handlers find below the exception; ``depth`` stack entries
    are below it.
    """

    depth: int = 0

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.emitter.load_lasti(self.depth)


MethodImplementation = Callable[..., "VariableTracker | None"]


class MethodTable(RuleTable[str, MethodImplementation]):
    """Methods of one built-in type as functions
    ``(ctx, self, *args) -> tracker or None for None``.
    """

    def __init__(self, parent: MethodTable | None = None) -> None:
        super().__init__()
        self._parent = parent

    def find(self, name: str) -> MethodImplementation | None:
        """The rule of a method, here or in the parent table."""
        rule = self.get(name)
        return rule if rule is not None or self._parent is None else self._parent.find(name)


def no_keywords(kwargs: Kwargs, what: str) -> None:
    """Break the graph if a rule without keyword parameters receives some."""
    if kwargs:
        raise GraphBreak("BD007", f"{what} with keyword arguments")


def realize(ctx: Context, value: VariableTracker) -> VariableTracker:
    """The value, wrapped now if it was not read before."""
    return value.realize(ctx) if isinstance(value, LazyVariable) else value


@dataclass(frozen=True, slots=True, eq=False)
class BoundRuleVariable(Variable):
    """A method that the owner's tracker implements in ``call_method``."""

    owner: VariableTracker
    name: str

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        if type(self.owner).call_method is VariableTracker.call_method:
            raise GraphBreak("BD007", f"{self.name} of {self.owner.describe()}")
        return self.owner.call_method(ctx, self.name, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return new_value(ctx, self.name)
        raise GraphBreak("BD014", f"attribute {name!r} of a method")

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen(self.owner)
        gen.emitter.load_attr(self.name)


def method_of_type(ctx: Context, owner: VariableTracker, name: str) -> VariableTracker:
    """``owner.name`` of an instance of a type written in C, which has no attributes of its own: a
    method that the tracker implements, or what the type has besides.
    """
    cls = owner.python_type()
    if callable(getattr(cls, name, None)) and name != "__class__":
        return BoundRuleVariable(owner, name)
    return class_attribute(ctx, owner, cls, name)


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
        return apply_rule(ctx, name, rule, [self, *args], kwargs)
