"""Objects of Python classes that extend a built-in container, number or text."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bytecode_dynamo.class_flags import native_base
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.reconstruction import rebuilding
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import fold_call, instantiate, new_dict, new_list
from bytecode_dynamo.state.tracker import Args, VariableTracker

from .attribute import find_special
from .base import NULL, Variable
from .constant import ConstantVariable
from .sequence import TupleVariable
from .sets import set_of
from .userobject import UserObjectVariable


@dataclass(frozen=True, slots=True, eq=False)
class DerivedVariable(UserObjectVariable):
    """An object with attributes, whose built-in contents are another tracker."""

    contents: VariableTracker = NULL

    def as_constant(self, ctx: Context) -> Any:
        if self.key.exists and isinstance(self.contents, (ConstantVariable, TupleVariable)):
            return self.key.value
        if isinstance(self.contents, ConstantVariable):
            return self.contents.value
        return Variable.as_constant(self, ctx)

    def as_proxy(self, ctx: Context) -> Any:
        return self.contents.as_proxy(ctx)

    def as_fake(self, ctx: Context) -> Any:
        return self.contents.as_fake(ctx)

    def hash_key(self, ctx: Context) -> Hashable:
        find_special(ctx, self.key.cls, "__hash__")
        if self.key.cls.__hash__ is native_base(self.key.cls).__hash__:
            return self.contents.hash_key(ctx)
        return UserObjectVariable.hash_key(self, ctx)

    def reconstruct(self, gen: ValueBuilder) -> None:
        """Push a new object; contents and attributes are filled in later."""
        base, cls = native_base(self.key.cls), self.key.cls
        gen.begin(self.key)
        gen.emitter.load_callee_const(base.__new__)
        gen.load_const(cls)
        if isinstance(self.contents, TupleVariable):
            gen.build_tuple(self.contents.items)
        elif isinstance(self.contents, ConstantVariable):
            gen(self.contents)
        gen.emitter.call(1 + isinstance(self.contents, (TupleVariable, ConstantVariable)))
        gen.keep(self.key)
        gen.fill_attributes(self.key)
        held = self.contents.identity()
        if isinstance(held, Identity):
            gen.pending.append(partial(_fill_contents, gen, gen.built[self.key], held))


def _fill_contents(gen: ValueBuilder, name: str, key: Identity) -> None:
    contents = gen.ctx.effects.read(key)
    if isinstance(contents, dict) and issubclass(key.cls, dict):
        factory = key.shell.contents.factory
        if factory is not None:
            gen.store_attribute(name, "default_factory", factory)
        gen.emitter.build_dict(gen.push_entries(contents))
    else:
        values = contents.values() if isinstance(contents, dict) else contents
        gen.emitter.build_list(gen.push_all(values))
    items = gen.temporary()
    gen.emitter.store_fast(items)
    gen.emitter.load_callee_const(rebuilding.REFILLED[key.cls])
    gen.emitter.load_fast(name)
    gen.emitter.load_fast(items)
    gen.emitter.call(2)
    gen.emitter.pop()


def native(value: VariableTracker) -> VariableTracker:
    """The built-in contents of an object, or the value itself."""
    return value.contents if isinstance(value, DerivedVariable) else value


def wrap_derived(
    ctx: Context, value: Any, source: Source, contents: VariableTracker
) -> VariableTracker:
    """An existing object whose contents were wrapped."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    key = Identity(type(value), value, source)
    made = DerivedVariable(key, contents, source=source)
    _link(contents, made)
    return ctx.effects.remember(value, made)


def new_derived(ctx: Context, cls: type, base: type, args: Args) -> VariableTracker:
    """``base.__new__(cls, *args)``."""
    maker = _MAKERS.get(base)
    if maker is None:
        raise GraphBreak("BD019", f"construction of {cls.__module__}.{cls.__qualname__}")
    contents = maker(ctx, list(args))
    made = DerivedVariable(Identity(cls), contents)
    _link(contents, made)
    return made


def _link(contents: VariableTracker, owner: DerivedVariable) -> None:
    key = contents.identity()
    if isinstance(key, Identity):
        key.shell = owner


_MAKERS: dict[type, Callable[[Context, list[VariableTracker]], VariableTracker]] = {
    dict: lambda ctx, args: new_dict(ctx, []),
    collections.OrderedDict: lambda ctx, args: new_dict(ctx, [], collections.OrderedDict),
    collections.defaultdict: lambda ctx, args: new_dict(ctx, [], collections.defaultdict),
    list: lambda ctx, args: new_list(ctx, []),
    collections.deque: lambda ctx, args: new_list(ctx, [], collections.deque),
    set: lambda ctx, args: set_of(ctx, {}, set),
    **{
        base: lambda ctx, args, base=base: fold_call(ctx, partial(base.__new__, base), args)
        for base in (int, float, str)
    },
    tuple: lambda ctx, args: instantiate(ctx, tuple, args, {}),
}


@protocol.wrap_contents.implement
def _wrap_contents(
    ctx: Context, value: Any, source: Source, contents: VariableTracker, base: type
) -> VariableTracker:
    """The tracker of an existing object with built-in contents: the contents' own if its class is
    built in.
    """
    if type(value) is not base:
        return wrap_derived(ctx, value, source, contents)
    return ctx.effects.remember(value, replace(contents, source=source))
