"""Dictionaries (also OrderedDict and defaultdict) and their views."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, ConstSource, ItemSource, Source, hidden_lookup
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state import protocol
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import DELETED, MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_special,
    class_attribute,
    get_attribute,
    pairs_of,
    raise_error,
    raise_exception,
    wrap_contents,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import has_special
from .base import (
    Args,
    BoundRuleVariable,
    ContainerVariable,
    KeyedVariable,
    Kwargs,
    LazyVariable,
    MethodTable,
    Variable,
    realize,
    runs_program,
)
from .constant import NONE, ConstantVariable, is_constant_value
from .iterator import iterate_keys
from .proxy import ProxyVariable
from .sequence import ListVariable, new_tuple
from .tensor import TensorVariable
from .userobject import UserObjectVariable
from .wording import hashed_as, no_pair
from .wrap import tracker_for

Entries = dict[Hashable, tuple[VariableTracker, VariableTracker]]
DICT_TYPES = (collections.OrderedDict, collections.defaultdict, dict)
LASTING = (type, types.FunctionType, types.BuiltinFunctionType)
DICT_METHODS = MethodTable()


@dataclass(frozen=True, slots=True, eq=False)
class DictVariable(KeyedVariable, ContainerVariable):
    """A dict, with entries in the effects under hash keys."""

    factory: VariableTracker | None = None

    def entries(self, ctx: Context) -> Entries:
        """Key -> (key tracker, value tracker), in order."""
        return ctx.effects.read(self.key)

    def replace(self, ctx: Context, entries: Entries) -> None:
        """Replace the entries."""
        if list(entries) != list(self.entries(ctx)):
            ctx.effects.note_move(self.key)
        ctx.effects.write(self.key, entries)

    def as_constant(self, ctx: Context) -> Any:
        pairs = self.entries(ctx).values()
        values = {
            realize(ctx, key).as_constant(ctx): realize(ctx, value).as_constant(ctx)
            for key, value in pairs
        }
        if self.key.cls is collections.defaultdict:
            return collections.defaultdict(
                None if self.factory is None else self.factory.as_constant(ctx), values
            )
        if self.key.cls is not collections.OrderedDict:
            return values
        return collections.OrderedDict(values)

    def as_proxy(self, ctx: Context) -> Any:
        pairs = self.entries(ctx).values()
        return {
            realize(ctx, key).as_constant(ctx): realize(ctx, value).as_proxy(ctx)
            for key, value in pairs
        }

    def as_fake(self, ctx: Context) -> Any:
        pairs = self.entries(ctx).values()
        return {
            realize(ctx, key).as_constant(ctx): realize(ctx, value).as_fake(ctx)
            for key, value in pairs
        }

    def hash_key(self, ctx: Context) -> Hashable:
        return raise_error(ctx, TypeError, f"unhashable type: {self.key.cls.__name__!r}")

    def methods(self) -> MethodTable:
        return DICT_METHODS

    def truth(self, ctx: Context) -> bool:
        return bool(self.entries(ctx))

    def length(self, ctx: Context) -> VariableTracker:
        return ConstantVariable(len(self.entries(ctx)))

    def get(self, ctx: Context, key: VariableTracker) -> VariableTracker | None:
        """The value of a key, or None."""
        entries = self.entries(ctx)
        entry = entries.get(hashed_as(ctx, "dict key", key, entries))
        return realize(ctx, entry[1]) if entry is not None else None

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        found = self.get(ctx, key)
        if found is not None:
            return found
        if self.key.shell is not None and has_special(
            ctx, self.key.shell.python_type(), "__missing__"
        ):
            return self.key.shell.call_method(ctx, "__missing__", [key], {})
        if self.factory is not None:
            made = self.factory.call(ctx, [], {})
            self.set_item(ctx, key, made)
            return made
        return raise_exception(ctx, KeyError, [key])

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        entries = dict(self.entries(ctx))
        hashed = hashed_as(ctx, "dict key", key, entries)
        old = entries.get(hashed)
        entries[hashed] = (key if old is None else old[0], value)
        self.replace(ctx, entries)

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        entries = dict(self.entries(ctx))
        if entries.pop(hashed_as(ctx, "dict key", key, entries), None) is None:
            raise_exception(ctx, KeyError, [key])
        self.replace(ctx, entries)

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        entries = self.entries(ctx)
        return hashed_as(ctx, "dict key", item, entries) in entries

    def iterate(self, ctx: Context) -> VariableTracker:
        return iterate_keys(ctx, self)

    noun: ClassVar[str] = "dictionary"

    def unpack_lazy(self, ctx: Context) -> list[VariableTracker]:
        """The keys now."""
        return [key for key, _ in self.entries(ctx).values()]

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        return [realize(ctx, key) for key, _ in self.entries(ctx).values()]

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if self.has_method(name):
            return BoundRuleVariable(self, name)
        written = ctx.effects.read((self.key, name))
        if written is not MISSING and written is not DELETED:
            return written
        if (
            self.key.cls is collections.OrderedDict
            and self.key.exists
            and name in vars(self.key.value)
            and self.key.source
        ):
            return wrap_value(ctx, vars(self.key.value)[name], AttrSource(self.key.source, name))
        if name == "default_factory" and self.key.cls is collections.defaultdict:
            return self.factory or NONE
        return class_attribute(ctx, self, self.key.cls, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if self.key.cls is not collections.OrderedDict or hasattr(collections.OrderedDict, name):
            Variable.set_attr(self, ctx, name, value)
        ctx.effects.write((self.key, name), value)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.begin(self.key)
        cls, entries = self.key.cls, self.entries(gen.ctx)
        if cls is dict:
            gen.emitter.build_dict(gen.push_entries(entries))
        else:
            gen.emitter.load_callee_const(cls)
            if cls is collections.defaultdict:
                gen(self.factory or NONE)
            gen.emitter.build_dict(gen.push_entries(entries))
            gen.emitter.call(1 + (cls is collections.defaultdict))
        gen.keep(self.key)
        gen.fill_attributes(self.key)


@dataclass(frozen=True, slots=True, eq=False)
class DictViewVariable(Variable):
    """``d.keys()``, ``d.values()`` or ``d.items()``."""

    base: DictVariable
    kind: str

    def example(self) -> Any:
        """An empty view of this type."""
        return getattr(self.base.example(), self.kind)()

    def python_type(self) -> type:
        return type(self.example())

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        return [realize(ctx, item) for item in self.unpack_lazy(ctx)]

    noun: ClassVar[str] = "dictionary"

    @property
    def key(self) -> Identity:
        """The viewed dict."""
        return self.base.key

    def unpack_lazy(self, ctx: Context) -> list[VariableTracker]:
        pairs = self.base.entries(ctx).values()
        if self.kind == "keys":
            return [key for key, _ in pairs]
        if self.kind == "values":
            return [value for _, value in pairs]
        return [new_tuple(pair) for pair in pairs]

    def iterate(self, ctx: Context) -> VariableTracker:
        return iterate_keys(ctx, self)

    def length(self, ctx: Context) -> VariableTracker:
        return self.base.length(ctx)

    def truth(self, ctx: Context) -> bool:
        return self.base.truth(ctx)

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        if self.kind == "keys":
            return self.base.contains(ctx, item)
        return Variable.contains(self, ctx, item)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "mapping":
            return ProxyVariable(self.base)
        if hasattr(self.python_type(), name):
            return BoundRuleVariable(self, name)
        return Variable.get_attr(self, ctx, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "isdisjoint":
            return ConstantVariable(
                not any(self.contains(ctx, item) for item in args[0].unpack(ctx))
            )
        if name.startswith("__") and name != "__class__":
            return call_special(ctx, self, name, args)
        raise GraphBreak("BD007", f"{name} of {self.describe()}")

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_method(self.base, self.kind)


# -- wrapping --------------------------------------------------------------------------------------


@tracker_for(dict)
def wrap_dict(ctx: Context, value: dict[Any, Any], source: Source) -> VariableTracker:
    base: Any = next(kind for kind in DICT_TYPES if isinstance(value, kind))
    lookup = hidden_lookup(type(value), dict)
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    ctx.guards.require(source, GuardKind.DICT_KEYS, tuple(base.__iter__(value)))
    key = Identity(base, value, source)
    entries: Entries = {}
    for item, held in base.items(value):
        name = wrap_key(ctx, item)
        entries[name.hash_key(ctx)] = (
            name,
            LazyVariable(held, source=ItemSource(source, item, lookup)),
        )
    ctx.effects.set_initial(key, entries)
    factory = None
    if isinstance(value, collections.defaultdict) and value.default_factory is not None:
        factory = wrap_value(ctx, value.default_factory, AttrSource(source, "default_factory"))
    return wrap_contents(ctx, value, source, DictVariable(key, factory), base)


def wrap_key(ctx: Context, key: Any) -> VariableTracker:
    """A key of an existing dict; the guard on the keys already pins it."""
    if is_constant_value(key):
        return ConstantVariable(key)
    if type(key) is tuple:
        return new_tuple([wrap_key(ctx, part) for part in key])
    return wrap_value(ctx, key, ConstSource(key))


def count_staying(before: dict[Hashable, Any], now: dict[Hashable, Any]) -> int:
    """The number of leading keys of a dict or set that stayed throughout: one removed and added
    again is new.
    """
    pairs = ((before[name], now[name]) for name in now if name in before)
    return sum((a[0] is b[0]) if type(a) is tuple else a is b for a, b in pairs)


# -- dict methods ----------------------------------------------------------------------------------


DICT_METHODS.register("get")(lambda ctx, self, key, default=None: self.get(ctx, key) or default)


def _view(kind: str) -> Callable[[Context, DictVariable], VariableTracker]:
    return lambda ctx, self: DictViewVariable(self, kind)


for _kind in ("keys", "values", "items"):
    DICT_METHODS.register(_kind)(_view(_kind))


@DICT_METHODS.register("setdefault")
def dict_setdefault(
    ctx: Context, self: DictVariable, key: VariableTracker, default: VariableTracker | None = None
) -> Any:
    found = self.get(ctx, key)
    if found is None:
        found = default or NONE
        self.set_item(ctx, key, found)
    return found


@DICT_METHODS.register("pop")
def dict_pop(
    ctx: Context, self: DictVariable, key: VariableTracker, *default: VariableTracker
) -> VariableTracker:
    found = self.get(ctx, key)
    if found is None:
        return default[0] if default else raise_exception(ctx, KeyError, [key])
    self.del_item(ctx, key)
    return found


@DICT_METHODS.register("popitem")
def dict_popitem(
    ctx: Context, self: DictVariable, last: VariableTracker | None = None
) -> VariableTracker:
    entries = dict(self.entries(ctx))
    if not entries:
        ordered = issubclass(self.key.cls, collections.OrderedDict)
        return raise_error(
            ctx, KeyError, "dictionary is empty" if ordered else "popitem(): dictionary is empty"
        )
    at = list(entries)[-1 if last is None or last.truth(ctx) else 0]
    pair = entries.pop(at)
    self.replace(ctx, entries)
    return new_tuple([realize(ctx, part) for part in pair])


DICT_METHODS.register("clear")(lambda ctx, self: self.replace(ctx, {}))
DICT_METHODS.register("copy", "__copy__")(
    lambda ctx, self: dict_of(ctx, self.entries(ctx), self.key.cls, self.factory)
)


@DICT_METHODS.register("update", "__ior__")
def dict_update(
    ctx: Context, self: DictVariable, /, *others: VariableTracker, **named: VariableTracker
) -> None:
    for other in others:
        if runs_program(other) and _find_method(ctx, other, "keys") is None:
            for at, item in enumerate(other.each(ctx)):
                _set_entries(ctx, self, [_pair(ctx, at, item)])
        else:
            _set_entries(ctx, self, pairs_of(ctx, other))
    if named:
        _set_entries(ctx, self, constant_pairs(named))


def _set_entries(
    ctx: Context, self: DictVariable, pairs: Iterable[tuple[VariableTracker, VariableTracker]]
) -> None:
    entries = dict(self.entries(ctx))
    for key, value in pairs:
        hashed = hashed_as(ctx, "dict key", key)
        old = entries.get(hashed)
        entries[hashed] = (key if old is None else old[0], value)
    self.replace(ctx, entries)


@DICT_METHODS.register("move_to_end")
def dict_move_to_end(
    ctx: Context, self: DictVariable, key: VariableTracker, last: VariableTracker | None = None
) -> None:
    entries = dict(self.entries(ctx))
    hashed = key.hash_key(ctx)
    if hashed not in entries:
        raise_exception(ctx, KeyError, [key])
    moved = {hashed: entries.pop(hashed)}
    self.replace(
        ctx, {**entries, **moved} if last is None or last.truth(ctx) else {**moved, **entries}
    )


def constant_pairs(named: Kwargs) -> Iterable[tuple[VariableTracker, VariableTracker]]:
    """Keyword arguments as entries."""
    return [(ConstantVariable(name), value) for name, value in named.items()]


@protocol.pairs_of.implement
def _pairs_of(
    ctx: Context, value: VariableTracker
) -> list[tuple[VariableTracker, VariableTracker]]:
    """Entries of a mapping, or of an iterable of pairs."""
    if (
        isinstance(value, UserObjectVariable)
        and getattr(value.python_type(), "__iter__", None) is dict.__iter__
    ):  # pyright: ignore
        value = value.contents  # pyright: ignore
    if isinstance(value, DictVariable):
        return [(realize(ctx, key), held) for key, held in value.entries(ctx).values()]
    keys = _find_method(ctx, value, "keys")
    if keys is not None:
        names = keys.call(ctx, [], {}).unpack(ctx)
        return [(name, value.get_item(ctx, name)) for name in names]
    return [_pair(ctx, at, item) for at, item in enumerate(value.unpack(ctx))]


def _pair(ctx: Context, at: int, item: VariableTracker) -> tuple[VariableTracker, VariableTracker]:
    if not hasattr(item.python_type(), "__iter__") and not hasattr(
        item.python_type(), "__getitem__"
    ):
        raise_error(ctx, TypeError, no_pair(at))
    parts = item.unpack(ctx)
    if len(parts) != 2:
        raise_error(
            ctx,
            ValueError,
            f"dictionary update sequence element #{at} has length {len(parts)}; 2 is required",
        )
    return parts[0], parts[1]


# -- set methods -----------------------------------------------------------------------------------


@protocol.new_dict.implement
def _new_dict(
    ctx: Context, pairs: Sequence[tuple[VariableTracker, VariableTracker]], cls: type = dict
) -> DictVariable:
    """A new dict; of equal keys, the first stays with the last value."""
    entries: dict[Hashable, tuple[VariableTracker, VariableTracker]] = {}
    for key, value in pairs:
        hashed = hashed_as(ctx, "dict key", key)
        entries[hashed] = (entries[hashed][0] if hashed in entries else key, value)
    return dict_of(ctx, entries, cls)


def dict_of(
    ctx: Context, entries: Mapping[Hashable, Any], cls: type, factory: Any = None
) -> DictVariable:
    """A new dict from entries."""
    key = Identity(cls)
    ctx.effects.write(key, dict(entries))
    return DictVariable(key, factory)


def _find_method(ctx: Context, owner: VariableTracker, name: str) -> VariableTracker | None:
    """A method of an object, or None."""
    if isinstance(owner, (ListVariable, TensorVariable)) or not hasattr(owner.python_type(), name):
        return None
    return get_attribute(ctx, owner, name)
