"""Sets and frozensets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AppliedSource, ItemSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import raise_error, raise_exception, wrap_contents, wrap_value
from bytecode_dynamo.state.tracker import VariableTracker

from .base import ContainerVariable, KeyedVariable, MethodTable, realize, runs_program
from .constant import ConstantVariable, SymbolicVariable, is_constant_value
from .iterator import iterate_keys
from .mapping import LASTING, wrap_key
from .text import TextVariable
from .userobject import wrap_opaque
from .wording import hashed_as
from .wrap import tracker_for

SET_METHODS = MethodTable()


@dataclass(frozen=True, slots=True, eq=False)
class SetVariable(KeyedVariable, ContainerVariable):
    """A set or frozenset, with key -> tracker in the effects."""

    def members(self, ctx: Context) -> dict[Hashable, VariableTracker]:
        """Key -> tracker, in order of insertion."""
        return ctx.effects.read(self.key)

    def replace(self, ctx: Context, members: dict[Hashable, VariableTracker]) -> None:
        """Replace the members."""
        ctx.effects.note_move(self.key)
        ctx.effects.write(self.key, members)

    def as_constant(self, ctx: Context) -> Any:
        ctx.evaluated.varies.append("the order of a set")
        return self.key.cls(
            realize(ctx, item).as_constant(ctx) for item in self.members(ctx).values()
        )

    def hash_key(self, ctx: Context) -> Hashable:
        if self.key.cls is not frozenset:
            return raise_error(ctx, TypeError, "unhashable type: 'set'")
        return frozenset(self.members(ctx))

    def methods(self) -> MethodTable:
        return SET_METHODS

    def truth(self, ctx: Context) -> bool:
        return bool(self.members(ctx))

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.members(ctx)))

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        members = self.members(ctx)
        return hashed_as(ctx, "set element", item, members) in members

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        ctx.evaluated.varies.append("the order of a set")
        items = [realize(ctx, item) for item in self.members(ctx).values()]
        if len(items) > 1 and not self.key.exists:
            # The order of a set depends on hashes: ask a real one where that is possible; changing
            # numbers are specialised.
            known = (ConstantVariable, SymbolicVariable, TextVariable)
            by_value = {item.as_constant(ctx): item for item in items if isinstance(item, known)}
            if len(by_value) == len(items):
                return [by_value[value] for value in set(by_value)]
        return items

    def iterate(self, ctx: Context) -> VariableTracker:
        return iterate_keys(ctx, self)

    noun: ClassVar[str] = "Set"

    def unpack_lazy(self, ctx: Context) -> list[VariableTracker]:
        """The current elements."""
        return self.unpack(ctx)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.begin(self.key)
        members = self.members(gen.ctx).values()
        for member in members:
            member.complete(gen)
        gen.emitter.build_set(gen.push_all(members))
        if self.key.cls is not set:
            items = gen.temporary()
            gen.emitter.store_fast(items)
            gen.emitter.load_callee_const(self.key.cls)
            gen.emitter.load_fast(items)
            gen.emitter.call(1)
        gen.keep(self.key)


@tracker_for(set, frozenset)
def wrap_set(ctx: Context, value: set[Any], source: Source) -> VariableTracker:
    base = set if isinstance(value, set) else frozenset
    if not all(
        is_constant_value(item) or isinstance(item, LASTING) for item in base.__iter__(value)
    ):
        return _wrap_objects(ctx, value, source, base)
    if type(value) is base and all(map(is_constant_value, value)):
        ctx.guards.require(source, GuardKind.EQUALS, base(value))
    else:
        held = frozenset(base.__iter__(value))
        same = Answer("{}", lambda now: frozenset(base.__iter__(now)), held)
        ctx.guards.require(source, GuardKind.CUSTOM, same)
    key = Identity(base, value, source)
    members = [wrap_key(ctx, item) for item in value]
    ctx.effects.set_initial(key, {item.hash_key(ctx): item for item in members})
    return wrap_contents(ctx, value, source, SetVariable(key), base)


class MembersSource(AppliedSource):
    """The elements of a set, in its order."""

    function = tuple
    text = "tuple({})"


def _wrap_objects(ctx: Context, value: Any, source: Source, base: type) -> VariableTracker:
    """A set of objects compared by identity."""
    items = tuple(value)
    if type(value) is not base or not all(
        is_constant_value(item) or _is_itself(item) for item in items
    ):
        return wrap_opaque(ctx, value, source, "a set of objects")
    ctx.guards.require(source, GuardKind.TYPE_IS, base)
    ctx.guards.require(source, GuardKind.LENGTH, len(items))
    members = [
        wrap_value(ctx, item, ItemSource(MembersSource(source), at))
        for at, item in enumerate(items)
    ]
    key = Identity(base, value, source)
    ctx.effects.set_initial(key, {item.hash_key(ctx): item for item in members})
    return ctx.effects.remember(value, SetVariable(key, source=source))


def _is_itself(item: object) -> bool:
    plain = type(item).__hash__ is object.__hash__ and type(item).__eq__ is object.__eq__
    return plain or isinstance(item, (torch.Tensor, torch.nn.Module, *LASTING))


def members_of(ctx: Context, items: VariableTracker) -> dict[Hashable, VariableTracker]:
    """The elements of an iterable as set contents."""
    if isinstance(items, SetVariable):
        return items.members(ctx)
    return {hashed_as(ctx, "set element", item): item for item in items.unpack(ctx)}


@SET_METHODS.register("add")
def set_add(ctx: Context, self: SetVariable, item: VariableTracker) -> None:
    members = self.members(ctx)
    key = hashed_as(ctx, "set element", item, members)
    if key not in members:
        self.replace(ctx, {**members, key: item})


@SET_METHODS.register("discard")
def set_discard(ctx: Context, self: SetVariable, item: VariableTracker) -> None:
    members = dict(self.members(ctx))
    if members.pop(hashed_as(ctx, "set element", item, members), None) is not None:
        self.replace(ctx, members)


@SET_METHODS.register("remove")
def set_remove(ctx: Context, self: SetVariable, item: VariableTracker) -> None:
    if not self.contains(ctx, item):
        raise_exception(ctx, KeyError, [item])
    set_discard(ctx, self, item)


SET_METHODS.register("clear")(lambda ctx, self: self.replace(ctx, {}))


@SET_METHODS.register("update", "__ior__")
def set_update(ctx: Context, self: SetVariable, *others: VariableTracker) -> None:
    for other in others:
        if runs_program(other):
            for item in other.each(ctx):
                set_add(ctx, self, item)
            continue
        members = dict(self.members(ctx))
        for key, item in members_of(ctx, other).items():
            members.setdefault(key, item)
        if len(members) > len(self.members(ctx)):
            self.replace(ctx, members)


SET_METHODS.register("copy")(lambda ctx, self: set_of(ctx, self.members(ctx), self.key.cls))


def _combine(
    keep: Callable[
        [Hashable, dict[Hashable, VariableTracker], dict[Hashable, VariableTracker]], bool
    ],
) -> Any:
    def rule(ctx: Context, self: SetVariable, *others: VariableTracker) -> VariableTracker:
        members = self.members(ctx)
        for other in others:
            right = members_of(ctx, other)
            every = {**members, **right}
            members = {key: item for key, item in every.items() if keep(key, members, right)}
        return set_of(ctx, members, self.key.cls)

    return rule


SET_METHODS.register("union", "__or__")(_combine(lambda key, left, right: True))
SET_METHODS.register("intersection", "__and__")(
    _combine(lambda key, left, right: key in left and key in right)
)
SET_METHODS.register("difference", "__sub__")(
    _combine(lambda key, left, right: key in left and key not in right)
)
SET_METHODS.register("symmetric_difference", "__xor__")(
    _combine(lambda key, left, right: (key in left) != (key in right))
)


def _updating(name: str) -> Any:
    combine = SET_METHODS[name]

    def rule(ctx: Context, self: SetVariable, *others: VariableTracker) -> None:
        combined = cast(SetVariable, combine(ctx, self, *others))
        self.replace(ctx, combined.members(ctx))

    return rule


for _name in ("intersection", "difference", "symmetric_difference"):
    SET_METHODS.register(f"{_name}_update")(_updating(_name))


@SET_METHODS.register("pop")
def set_pop(ctx: Context, self: SetVariable) -> VariableTracker:
    items = self.unpack(ctx)
    if not items:
        return raise_error(ctx, KeyError, "pop from an empty set")
    set_discard(ctx, self, items[0])
    return items[0]


def _compare(holds: Callable[[set[Hashable], set[Hashable]], bool]) -> Any:
    def rule(ctx: Context, self: SetVariable, other: VariableTracker) -> VariableTracker:
        return ConstantVariable(holds(set(self.members(ctx)), set(members_of(ctx, other))))

    return rule


SET_METHODS.register("issubset", "__le__")(_compare(lambda left, right: left <= right))
SET_METHODS.register("issuperset", "__ge__")(_compare(lambda left, right: left >= right))
SET_METHODS.register("isdisjoint")(_compare(lambda left, right: left.isdisjoint(right)))


def set_of(ctx: Context, members: Mapping[Any, VariableTracker], cls: type) -> SetVariable:
    """A new set from members."""
    key = Identity(cls)
    ctx.effects.write(key, dict(members))
    return SetVariable(key)
