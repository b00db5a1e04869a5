"""Making trackers: from existing values with a source, and from values computed while
evaluating.
"""

# The class is a part of Context, whose other parts its methods use.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from symshapes import DataDependentError, GuardOnDataDependent

from . import hook_policy
from .class_flags import IMMUTABLE
from .effects import DELETED, Identity
from .errors import GraphBreak, NotConstant, ObservedException
from .guards import ABSENT, GuardKind, TensorFacts
from .source import AttrSource, ConstSource, ItemSource, Source
from .variables.attribute import load_class_attribute
from .variables.base import LazyVariable, VariableTracker
from .variables.callable import (
    BoundRuleVariable,
    CallableVariable,
    ClassVariable,
    NamespaceVariable,
)
from .variables.constant import ConstantVariable, SymbolicVariable, is_constant_value
from .variables.derived import wrap_derived
from .variables.iterator import ItemsIterator, KeysIterator, ListIterator, RangeIterator
from .variables.mapping import DictVariable, DictViewVariable
from .variables.module import PythonModuleVariable
from .variables.proxy import ProxyVariable
from .variables.sequence import ListVariable, RangeVariable, TupleVariable
from .variables.sets import SetVariable
from .variables.tensor import TensorVariable
from .variables.userobject import ExceptionVariable, UserObjectVariable
from .variables.wrap import TRACKERS
from .wording import hashed_as

if TYPE_CHECKING:
    from .context import Context
    from .frame import GlobalNames

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Creation:
    """The part of :class:`Context` that makes trackers."""

    none = ConstantVariable(None)

    # -- existing values ---------------------------------------------------------------------------

    def wrap(self: Context, value: Any, source: Source) -> VariableTracker:
        """The tracker of an existing value; adds the guards that its kind needs."""
        known = self.effects.find(value)
        if known is not None:
            if known.source is not None and known.source != source and not _pinned(known, source):
                self.guards.require(source, GuardKind.ALIASED, known.source)
            return known
        return TRACKERS.find(type(value))(self, value, source)

    def real(self: Context, value: VariableTracker) -> VariableTracker:
        """The value, wrapped now if nobody had looked at it."""
        return value.realize(self) if isinstance(value, LazyVariable) else value

    def wrap_object(self: Context, value: Any, source: Source) -> VariableTracker:
        """An object by its attributes only."""
        return TRACKERS.find(object)(self, value, source)

    def derived(
        self: Context, value: Any, source: Source, contents: VariableTracker, base: type
    ) -> VariableTracker:
        """An existing object with contents: those themselves when its class is a built-in one."""
        if type(value) is not base:
            return wrap_derived(self, value, source, contents)
        return self.effects.remember(value, replace(contents, source=source))

    def wrap_callable(self: Context, value: Any, source: Source) -> VariableTracker:
        """A function written in C."""
        if isinstance(value, types.FunctionType):
            return self.wrap(value, source)
        return CallableVariable(value)

    def wrap_builtin_name(self: Context, names: GlobalNames, name: str) -> VariableTracker:
        """A built-in that a function finds because its globals do not have the name."""
        value = names.builtins[name]
        if not names.is_root:
            self.require_no_global(names, name)
        return self.wrap(value, names.source(name))

    def require_no_global(self: Context, names: GlobalNames, name: str) -> None:
        """Guard that a module does not have a variable."""
        base = names.base or hook_policy.globals_source(names.mapping)
        self.guards.require(base, GuardKind.NO_ATTR, name)

    def attribute_of(self: Context, value: Any, source: Source) -> Callable[[str], VariableTracker]:
        """A function that wraps attributes of an existing object."""
        return lambda name: self.wrap(getattr(value, name), AttrSource(source, name))

    def written_in_class(
        self: Context, cls: type, name: str, *, own: bool = False
    ) -> VariableTracker | None:
        """What a class finds under a name that the program assigned to it or to a base before; None
        where it did not.
        """
        for base in cls.__mro__[: 1 if own else None] if self.written_in_classes else ():
            held = self.effects.read((self.class_identity(base), name), None)
            if held is not None and held is not DELETED:
                return held
            if held is None and name in base.__dict__:
                return None
        return None

    def require_class_attribute(self: Context, cls: type, name: str) -> Any:
        """Guard on what a class finds under a name, or on its absence; returns it, or ABSENT."""
        written = (
            [base for base in cls.__mro__ if (base, name) in self.written_in_classes]
            if self.written_in_classes
            else ()
        )
        for base in written:
            held = self.effects.read((self.class_identity(base), name), None)
            if held is None or (held is DELETED and name not in base.__dict__):
                continue
            raise GraphBreak(
                "BD020",
                f"{name!r} of class {cls.__name__}, assigned to before, read through an instance",
            )
        found = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), ABSENT)
        self.guards.require(ConstSource(cls), GuardKind.CLASS_ATTR, (name, found))
        return found

    def require_order(self: Context, cls: type) -> None:
        """Guard on the bases of a class."""
        if not cls.__flags__ & IMMUTABLE:
            self.guards.require(
                AttrSource(ConstSource(cls), "__mro__"), GuardKind.IDENTITY, cls.__mro__
            )

    def require_tensor(
        self: Context, source: Source, value: torch.Tensor, fake: Any, dims: Sequence[int]
    ) -> None:
        """Guard on a tensor's metadata; strides that depend on symbols become conditions on
        sizes.
        """
        strides = (
            [dim for dim, stride in enumerate(fake.stride()) if isinstance(stride, torch.SymInt)]
            if dims
            else []
        )
        self.guards.require(source, GuardKind.TENSOR, TensorFacts.of(value, dims, strides))
        for dim in strides:
            self.require_stride(source, dim, fake.stride()[dim])

    def remember_tensor(
        self: Context, tracker: TensorVariable, value: torch.Tensor | None = None
    ) -> None:
        """Let a fake be found again; guard that inputs that may be written are different
        objects.
        """
        self.tensors[id(tracker.fake)] = tracker
        if value is None:
            return
        self.examples[id(tracker.fake)] = value
        if tracker.source is not None and not tracker.node.meta["static"]:
            for other in self.inputs[-MOST_COMPARED:]:
                self.guards.require(tracker.source, GuardKind.NOT_ALIASED, other)
            self.inputs.append(tracker.source)

    def require_not_aliased(self: Context, left: VariableTracker, right: VariableTracker) -> None:
        """Guard that two existing objects are different ones."""
        if isinstance(left, TensorVariable) or isinstance(left.identity(), Identity):
            assert left.source is not None and right.source is not None
            if not _pinned(left, right.source) and not _pinned(right, left.source):
                self.guards.require(left.source, GuardKind.NOT_ALIASED, right.source)

    def require_distinct(self: Context) -> None:
        """Guard that objects that the frame changes are not others that it reads."""
        for changed in {id(held): held for held in self.effects.written_since(0)}.values():
            if not isinstance(changed, Identity) or not changed.exists or changed.source is None:
                continue
            for other in self.effects.same_type(changed):
                if other.source is not None and not _pinned(other, changed.source):
                    self.guards.require(changed.source, GuardKind.NOT_ALIASED, other.source)

    def example_of(self: Context, tracker: TensorVariable) -> torch.Tensor | None:
        """The real tensor of an input."""
        return self.examples.get(id(tracker.fake)) if tracker.source is not None else None

    def globals_identity(self: Context, mapping: dict[str, Any]) -> Identity:
        """The object whose attributes are the variables of a module."""
        return self._identity(mapping, dict)

    def class_identity(self: Context, cls: type) -> Identity:
        """The object whose attributes are those of a class."""
        return self._identity(cls, type)

    def tensor_identity(self: Context, tracker: TensorVariable) -> Identity:
        """The object whose attributes are those of a tensor."""
        value = self.example_of(tracker)
        found = self.identities.get(id(tracker.fake))
        if found is None:
            made = (
                Identity(tracker.cls)
                if value is None
                else Identity(tracker.cls, value, tracker.source)
            )
            found = self.identities[id(tracker.fake)] = made
        return found

    def _identity(self: Context, value: Any, cls: type) -> Identity:
        found = self.identities.get(id(value))
        if found is None:
            found = self.identities[id(value)] = Identity(cls, value, ConstSource(value))
        return found

    # -- new values --------------------------------------------------------------------------------

    def constant(self: Context, value: Any) -> ConstantVariable:
        """A known immutable value."""
        return ConstantVariable(value)

    def constant_class(self: Context, cls: type) -> VariableTracker:
        """A class that is pinned by other guards."""
        return ClassVariable(cls)

    def create(self: Context, value: Any) -> VariableTracker:
        """The tracker of a value computed while evaluating; containers in it are new objects."""
        if is_constant_value(value):
            return ConstantVariable(value)
        if isinstance(value, SYMBOLIC_TYPES):
            expr = value.node.expr
            if expr.is_number or (getattr(expr, "is_Boolean", False) and not expr.free_symbols):
                return ConstantVariable(value.node.pytype(expr))
            return SymbolicVariable(value)
        rule = _CREATORS.get(type(value))
        if rule is not None:
            return rule(self, value)
        if isinstance(value, tuple) and (
            hasattr(type(value), "_fields") or type(value).__module__ == "torch.return_types"
        ):
            return TupleVariable(tuple(self.create(item) for item in value), type(value))
        if isinstance(value, Iterator):
            # the object itself would be used up once
            return self.iterator([self.create(item) for item in value])
        return self.wrap(value, ConstSource(value))

    def create_tuple(
        self: Context, items: Sequence[VariableTracker], cls: type = tuple
    ) -> TupleVariable:
        """A new tuple."""
        return TupleVariable(tuple(items), cls)

    def create_list(
        self: Context, items: Sequence[VariableTracker], cls: type = list, maxlen: int | None = None
    ) -> ListVariable:
        """A new list (or deque)."""
        key = Identity(cls)
        self.effects.write(key, tuple(items))
        return ListVariable(key, maxlen)

    def create_dict(
        self: Context, pairs: Sequence[tuple[VariableTracker, VariableTracker]], cls: type = dict
    ) -> DictVariable:
        """A new dict; of equal keys the first stays, with the last value."""
        entries: dict[Hashable, tuple[VariableTracker, VariableTracker]] = {}
        for key, value in pairs:
            hashed = hashed_as(self, "dict key", key)
            entries[hashed] = (entries[hashed][0] if hashed in entries else key, value)
        return self.new_dict(entries, cls)

    def new_dict(
        self: Context, entries: Mapping[Hashable, Any], cls: type, factory: Any = None
    ) -> DictVariable:
        """A new dict from entries."""
        key = Identity(cls)
        self.effects.write(key, dict(entries))
        return DictVariable(key, factory)

    def new_set(self: Context, members: Mapping[Any, VariableTracker], cls: type) -> SetVariable:
        """A new set from members."""
        key = Identity(cls)
        self.effects.write(key, dict(members))
        return SetVariable(key)

    def iterator(self: Context, items: Sequence[VariableTracker]) -> VariableTracker:
        """An iterator over fixed items."""
        return ItemsIterator(Identity(type(iter(()))), items=tuple(items))

    def keys_iterator(
        self: Context, base: DictVariable | DictViewVariable | SetVariable, backward: bool = False
    ) -> VariableTracker:
        """An iterator over a dict, a view of one, or a set."""
        count = len(base.unpack_lazy(self))
        return KeysIterator(
            Identity(type(iter(()))),
            base=base,
            count=count,
            moves=self.effects.moves(base.key),
            backward=backward,
        )

    def list_iterator(self: Context, base: ListVariable) -> VariableTracker:
        """An iterator over a list or deque."""
        return ListIterator(
            Identity(type(iter(base.key.cls()))), base=base, moves=self.effects.moves(base.key)
        )

    def range_iterator(self: Context, value: range) -> VariableTracker:
        """An iterator over a range."""
        return RangeIterator(Identity(type(iter(range(0)))), value=value)

    def bound_rule(self: Context, owner: VariableTracker, name: str) -> VariableTracker:
        """A method that the owner's tracker implements."""
        return BoundRuleVariable(owner, name)

    def class_attribute(
        self: Context, owner: VariableTracker, cls: type, name: str
    ) -> VariableTracker:
        """``owner.name`` by its class only."""
        return load_class_attribute(self, owner, cls, name)

    def enum_members(self: Context, cls: type) -> list[Any]:
        """The members of an enumeration."""
        if not isinstance(cls, enum.EnumMeta):
            raise GraphBreak("BD012", f"iteration over class {cls.__name__}")
        names, found = ConstSource(cls._member_names_), ConstSource(cls._member_map_)
        self.guards.require(names, GuardKind.LENGTH, len(cls._member_names_))
        for k, name in enumerate(cls._member_names_):
            self.guards.require(ItemSource(names, k), GuardKind.EQUALS, name)
            self.guards.require(ItemSource(found, name), GuardKind.IDENTITY, cls._member_map_[name])
        return list(cls)

    # -- exceptions --------------------------------------------------------------------------------

    def new_exception(
        self: Context, cls: type, args: Sequence[VariableTracker]
    ) -> ExceptionVariable:
        """A new exception object."""
        error = ExceptionVariable(Identity(cls))
        self.effects.write((error.key, "args"), self.create_tuple(args))
        return error

    def raise_observed(self: Context, cls: type, args: Sequence[VariableTracker]) -> NoReturn:
        """Raise an exception in the evaluated program."""
        raise self.observed(self.new_exception(cls, args))

    def handled_exception(self: Context) -> VariableTracker | None:
        """The exception of the innermost handler."""
        frame = self.frame
        while frame is not None and not frame.handled:
            frame = frame.parent
        return frame.handled[-1] if frame is not None else None

    def observed(self: Context, error: VariableTracker) -> ObservedException:
        """The raise of an exception object: what is being handled becomes its context."""
        handled = self.handled_exception()
        if handled is not None and handled is not error and isinstance(error, ExceptionVariable):
            self.effects.write((error.key, "__context__"), handled)
        return ObservedException(error)

    def raise_error(self: Context, cls: type, *args: Any) -> NoReturn:
        """Raise an exception with constant arguments in the evaluated program."""
        self.raise_observed(
            cls,
            [
                self.create(arg) if is_constant_value(arg) else ConstantVariable(str(arg))
                for arg in args
            ],
        )

    # -- values of trackers ------------------------------------------------------------------------

    def fold(
        self: Context,
        function: Callable[..., Any],
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Call a pure function on known values now; what it raises is raised in the program."""
        try:
            values = [arg.as_constant(self) for arg in args]
            named = {name: value.as_constant(self) for name, value in kwargs.items()}
        except NotConstant as error:
            name = getattr(function, "__name__", str(function))
            raise GraphBreak("BD007", f"{name} of {error}") from None
        try:
            result = function(*values, **named)
        except Exception as error:
            self.raise_error(type(error), *error.args)
        return self.create(result)

    def constant_of(self: Context, value: VariableTracker, what: str) -> Any:
        """The Python value of a tracker, or a graph break that says what it was needed for."""
        try:
            return value.as_constant(self)
        except NotConstant:
            raise GraphBreak("BD007", f"{value.describe()} as {what}") from None

    def index(self: Context, key: VariableTracker) -> Any:
        """An index into a Python sequence: an int or slice."""
        if isinstance(key, TensorVariable):
            return self.decide(lambda: key.fake.__index__(), f"{key.describe()} as an index")
        if isinstance(key, UserObjectVariable) and key.special(self, "__index__") is not None:
            key = key.ask(self, "__index__", [])
        return self.constant_of(key, "an index")

    def decide(self: Context, compute: Callable[[], Any], what: str) -> Any:
        """A Python value computed from fake values: may add guards on sizes, or break the graph."""
        try:
            with self.mode:
                return compute()
        except (DataDependentError, GuardOnDataDependent):
            raise GraphBreak("BD001", f"the value of {what} decides what happens next") from None
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, RuntimeError) as error:
            return self.raise_error(type(error), *error.args)


MOST_COMPARED = 12


def _pinned(known: VariableTracker, source: Source) -> bool:
    """Whether both sources are guarded to give the same object anyway."""
    return isinstance(known, (ClassVariable, CallableVariable, PythonModuleVariable)) or (
        isinstance(source, ConstSource) or isinstance(known.source, ConstSource)
    )


def _create_items(cls: type) -> Callable[[Any, Any], VariableTracker]:
    return lambda ctx, value: TupleVariable(tuple(ctx.create(item) for item in value), cls)


def _create_mapping(ctx: Any, value: Any) -> VariableTracker:
    return ctx.create_dict(
        [(ctx.create(key), ctx.create(held)) for key, held in value.items()], type(value)
    )


def _create_set(ctx: Any, value: Any) -> VariableTracker:
    items = [ctx.create(item) for item in value]
    return ctx.new_set({item.hash_key(ctx): item for item in items}, type(value))


_CREATORS: dict[type, Callable[[Any, Any], VariableTracker]] = {
    tuple: _create_items(tuple),
    torch.Size: _create_items(torch.Size),
    list: lambda ctx, value: ctx.create_list([ctx.create(item) for item in value]),
    dict: _create_mapping,
    collections.OrderedDict: _create_mapping,
    set: _create_set,
    frozenset: _create_set,
    range: lambda ctx, value: RangeVariable(value),
    type: lambda ctx, value: ClassVariable(value),
    torch.finfo: lambda ctx, value: NamespaceVariable(value),
    torch.iinfo: lambda ctx, value: NamespaceVariable(value),
    types.ModuleType: lambda ctx, value: PythonModuleVariable(value),
    types.MappingProxyType: lambda ctx, value: ProxyVariable(ctx.create(dict(value))),
}
