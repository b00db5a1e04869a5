"""VariableTracker: what is known about one Python value while a frame is evaluated.

A tracker is immutable and cheap. ``source`` says how to load the value again, or is None for a
value that was made while evaluating. Each capability is a method that returns a tracker or raises
:class:`GraphBreak`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.source import Source

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.effects import Identity
    from bytecode_dynamo.value_builder import ValueBuilder

Args = list["VariableTracker"]
Kwargs = dict[str, "VariableTracker"]


@dataclass(frozen=True, slots=True, eq=False)
class VariableTracker:
    """Base of all trackers; every capability breaks the graph unless a family provides it."""

    source: Source | None = field(default=None, kw_only=True)
    always_rebuilt: ClassVar[bool] = False
    """Whether building it is as cheap as loading it from its source."""
    kept_when_built: ClassVar[bool] = False
    """Whether the object is kept in a variable once it is built."""

    # -- what it is --------------------------------------------------------------------------------

    def python_type(self) -> type:
        """The type that ``type(value)`` gives."""
        raise GraphBreak("BD007", f"the type of {self.describe()} is not known")

    def class_of(self, ctx: Context) -> type:
        """What ``value.__class__`` gives."""
        return self.python_type()

    @property
    def is_none(self) -> bool:
        """Whether the value is known to be None."""
        return False

    def describe(self) -> str:
        """A few words for messages."""
        where = f" {self.source.name}" if self.source is not None else ""
        return f"{type(self).__name__.removesuffix('Variable').lower()}{where}"

    def as_constant(self, ctx: Context) -> Any:
        """The Python value when it is known and nothing it holds can change; raises NotConstant."""
        raise NotConstant(self.describe())

    def as_proxy(self, ctx: Context) -> Any:
        """The value as an argument of a graph node."""
        return self._known_argument(ctx)

    def as_fake(self, ctx: Context) -> Any:
        """The value to evaluate torch calls with."""
        return self._known_argument(ctx)

    def _known_argument(self, ctx: Context) -> Any:
        try:
            return self.as_constant(ctx)
        except NotConstant:
            raise GraphBreak(
                "BD002", f"{self.describe()} can't be an argument of a torch call"
            ) from None

    def identity(self) -> object:
        """An object that stands for the value in ``is`` and ``id``."""
        return self

    def hash_key(self, ctx: Context) -> Hashable:
        """A key with the equality and hash of the value, for dicts and sets."""
        raise GraphBreak("BD007", f"{self.describe()} as a key of a dict or set")

    def hash_among(self, ctx: Context, keys: Collection[Hashable]) -> Hashable:
        """The key to look for among others."""
        return self.hash_key(ctx)

    def truth(self, ctx: Context) -> bool:
        """``bool(value)``."""
        raise GraphBreak("BD007", f"the truth value of {self.describe()}")

    def require_method(self, ctx: Context, name: str, otherwise: str) -> None:
        """Raise TypeError in the program when the type of the value has no such method."""
        cls = self.python_type()
        if not any(name in base.__dict__ for base in cls.__mro__):
            ctx.raise_error(TypeError, f"{cls.__name__!r} {otherwise}")

    # -- what it does ------------------------------------------------------------------------------

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        """``value(*args, **kwargs)``."""
        self.require_method(ctx, "__call__", "object is not callable")
        raise GraphBreak("BD002", f"call of {self.describe()}")

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        """``value.name(*args, **kwargs)``."""
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        """``value.name``; raises ObservedException with an AttributeError when there is none."""
        raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        """``self.name = value``."""
        raise GraphBreak("BD020", f"assignment to attribute {name!r} of {self.describe()}")

    def del_attr(self, ctx: Context, name: str) -> None:
        """``del self.name``."""
        raise GraphBreak("BD020", f"deletion of attribute {name!r} of {self.describe()}")

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        """``value[key]``."""
        self.require_method(ctx, "__getitem__", "object is not subscriptable")
        raise GraphBreak("BD007", f"an item of {self.describe()}")

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        """``self[key] = value``."""
        self.require_method(ctx, "__setitem__", "object does not support item assignment")
        raise GraphBreak("BD020", f"assignment to an item of {self.describe()}")

    def del_item(self, ctx: Context, key: VariableTracker) -> None:
        """``del self[key]``."""
        self.require_method(ctx, "__delitem__", "object doesn't support item deletion")
        raise GraphBreak("BD020", f"deletion of an item of {self.describe()}")

    def contains(self, ctx: Context, item: VariableTracker) -> bool:
        """``item in value``."""
        iterator = self.iterate(ctx)
        while (element := iterator.next(ctx)) is not None:
            ctx.count_instruction()
            if ctx.alike(element, item):
                return True
        return False

    def length(self, ctx: Context) -> VariableTracker:
        """``len(value)``."""
        raise GraphBreak("BD007", f"the length of {self.describe()}")

    def iterate(self, ctx: Context) -> VariableTracker:
        """``iter(value)``."""
        raise GraphBreak("BD012", f"iteration over {self.describe()}")

    def next(self, ctx: Context) -> VariableTracker | None:
        """``next(value)``, None at the end."""
        raise GraphBreak("BD012", f"iteration over {self.describe()}")

    def unpack(self, ctx: Context) -> list[VariableTracker]:
        """All elements that iterating gives."""
        iterator = self.iterate(ctx)
        items = []
        while (item := iterator.next(ctx)) is not None:
            ctx.count_instruction()
            items.append(item)
        return items

    # -- how to build it ---------------------------------------------------------------------------

    def reconstruct(self, gen: ValueBuilder) -> None:
        """Emit instructions that push the value; called when it has no source, or a new object must
        be made.
        """
        raise GraphBreak("BD015", f"{self.describe()} is needed after the graph")

    def complete(self, gen: ValueBuilder) -> None:
        """Build an object that is about to be hashed or iterated over, with what fills it."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyedVariable(VariableTracker):
    """One object that can change: what it holds is in the effects, under its key."""

    key: Identity

    def python_type(self) -> type:
        return self.key.cls

    def identity(self) -> object:
        return self.key


@dataclass(frozen=True, slots=True, eq=False)
class LazyVariable(VariableTracker):
    """An element of an existing container, or a local, that nobody has looked at yet: no guard is
    needed so far.
    """

    value: Any = None

    def realize(self, ctx: Context) -> VariableTracker:
        """The real tracker, with its guards."""
        assert self.source is not None
        return ctx.wrap(self.value, self.source)

    def reconstruct(self, gen: ValueBuilder) -> None:
        assert self.source is not None
        gen.load_source(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class NullVariable(VariableTracker):
    """The NULL that the interpreter pushes beside callables, or leaves in a cleared local."""

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.emitter.push_null()


NULL = NullVariable()


@dataclass(frozen=True, slots=True, eq=False)
class LastiVariable(VariableTracker):
    """What some handlers find below the exception: the place of the raise. ``depth`` entries of the
    stack are below it.
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


class ContainerVariable(VariableTracker):
    """A value of a built-in type whose methods are rules of a table."""

    __slots__ = ()

    def methods(self) -> MethodTable:
        """Methods of the type."""
        raise NotImplementedError

    def has_method(self, name: str) -> bool:
        """Whether there is a rule for a method."""
        return self.methods().find(name) is not None

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return (
            ctx.bound_rule(self, name)
            if self.has_method(name)
            else ctx.class_attribute(self, self.python_type(), name)
        )

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        rule = self.methods().find(name)
        if rule is None:
            return self.get_attr(ctx, name).call(ctx, args, kwargs)
        return ctx.apply_rule(name, rule, [self, *args], kwargs)


def no_keywords(kwargs: Kwargs, what: str) -> None:
    """Break the graph when a rule without keyword parameters got some."""
    if kwargs:
        raise GraphBreak("BD007", f"{what} with keyword arguments")
