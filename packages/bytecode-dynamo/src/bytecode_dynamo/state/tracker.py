"""VariableTracker: the knowledge about one Python value during evaluation.

A tracker is immutable and cheap. ``source`` says how to load the value again; it is None for a
value created while evaluating. Each capability is a method that returns a tracker or raises
:class:`GraphBreak`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.guards.source import Source

Args = Sequence["VariableTracker"]
Kwargs = Mapping[str, "VariableTracker"]
Capture = Any
"""The ``Context`` of the capture, which holds trackers and so is defined above them."""
Builder = Any
"""The ``ValueBuilder`` that writes the code."""


@dataclass(frozen=True, slots=True, eq=False)
class VariableTracker:
    """Base of all trackers; every capability breaks the graph unless a family provides it."""

    source: Source | None = field(default=None, kw_only=True)
    always_rebuilt: ClassVar[bool] = False
    """Whether building the value is as cheap as loading it from its source."""
    kept_when_built: ClassVar[bool] = False
    """Whether the object is stored in a variable once it is built."""
    is_tensor: ClassVar[bool] = False
    pinned: ClassVar[bool] = False
    """Whether a guard pins the source's object."""

    # -- what it is --------------------------------------------------------------------------------

    def python_type(self) -> type:
        """The type that ``type(value)`` gives."""
        raise GraphBreak("BD007", f"the type of {self.describe()} is not known")

    def class_of(self, ctx: Capture) -> type:
        """What ``value.__class__`` gives."""
        return self.python_type()

    @property
    def is_none(self) -> bool:
        """Whether the value is known to be None."""
        return False

    def describe(self) -> str:
        """A few words for messages."""
        where = f" {self.source.shown}" if self.source is not None else ""
        return f"{type(self).__name__.removesuffix('Variable').lower()}{where}"

    def as_constant(self, ctx: Capture) -> Any:
        """The Python value when it is known and nothing it holds can change; raises NotConstant."""
        raise NotConstant(self.describe())

    def as_proxy(self, ctx: Capture) -> Any:
        """The value as an argument of a graph node."""
        return self._known_argument(ctx)

    def as_fake(self, ctx: Capture) -> Any:
        """The value to evaluate torch calls with."""
        return self._known_argument(ctx)

    def _known_argument(self, ctx: Capture) -> Any:
        try:
            return self.as_constant(ctx)
        except NotConstant:
            raise GraphBreak(
                "BD002",
                f"{self.describe()} can't be an argument of a torch call",
                "pass a tensor, a number, or a list or dict of them",
            ) from None

    def identity(self) -> object:
        """The object that stands for the value in ``is`` and ``id``."""
        return self

    def hash_key(self, ctx: Capture) -> Hashable:
        """A key with the equality and hash of the value, for dicts and sets."""
        raise GraphBreak("BD007", f"{self.describe()} as a key of a dict or set")

    def hash_among(self, ctx: Capture, keys: Collection[Hashable]) -> Hashable:
        """The key for a lookup among others."""
        return self.hash_key(ctx)

    def truth(self, ctx: Capture) -> bool:
        """``bool(value)``."""
        raise GraphBreak("BD007", f"the truth value of {self.describe()}")

    # -- what it does ------------------------------------------------------------------------------

    def call(self, ctx: Capture, args: Args, kwargs: Kwargs) -> VariableTracker:
        """``value(*args, **kwargs)``."""
        raise GraphBreak("BD002", f"call of {self.describe()}")

    def call_method(self, ctx: Capture, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        """``value.name(*args, **kwargs)``."""
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def get_attr(self, ctx: Capture, name: str) -> VariableTracker:
        """``value.name``; raises ObservedException with an AttributeError when there is none."""
        raise GraphBreak("BD014", f"attribute {name!r} of {self.describe()}")

    def set_attr(self, ctx: Capture, name: str, value: VariableTracker) -> None:
        """``self.name = value``."""
        raise GraphBreak("BD020", f"assignment to attribute {name!r} of {self.describe()}")

    def del_attr(self, ctx: Capture, name: str) -> None:
        """``del self.name``."""
        raise GraphBreak("BD020", f"deletion of attribute {name!r} of {self.describe()}")

    def get_item(self, ctx: Capture, key: VariableTracker) -> VariableTracker:
        """``value[key]``."""
        raise GraphBreak("BD007", f"an item of {self.describe()}")

    def set_item(self, ctx: Capture, key: VariableTracker, value: VariableTracker) -> None:
        """``self[key] = value``."""
        raise GraphBreak("BD020", f"assignment to an item of {self.describe()}")

    def del_item(self, ctx: Capture, key: VariableTracker) -> None:
        """``del self[key]``."""
        raise GraphBreak("BD020", f"deletion of an item of {self.describe()}")

    def contains(self, ctx: Capture, item: VariableTracker) -> bool:
        """``item in value``."""
        raise GraphBreak("BD007", f"membership in {self.describe()}")

    def as_index(self, ctx: Capture) -> Any:
        """The value as an index into a Python sequence: an int or slice."""
        try:
            return self.as_constant(ctx)
        except NotConstant:
            raise GraphBreak("BD007", f"{self.describe()} as an index") from None

    def result(self, ctx: Capture) -> VariableTracker | None:
        """What a finished iterator returned, if anything."""
        return None

    def length(self, ctx: Capture) -> VariableTracker:
        """``len(value)``."""
        raise GraphBreak("BD007", f"the length of {self.describe()}")

    def iterate(self, ctx: Capture) -> VariableTracker:
        """``iter(value)``."""
        raise GraphBreak("BD012", f"iteration over {self.describe()}")

    def next(self, ctx: Capture) -> VariableTracker | None:
        """``next(value)``, None at the end."""
        raise GraphBreak("BD012", f"iteration over {self.describe()}")

    def each(self, ctx: Capture) -> Iterator[VariableTracker]:
        """The elements, one after the other: the program's code may run between them."""
        iterator = self.iterate(ctx)
        while (item := iterator.next(ctx)) is not None:
            ctx.count_instruction()
            yield item

    def unpack(self, ctx: Capture) -> list[VariableTracker]:
        """All elements that iterating gives."""
        return list(self.each(ctx))

    # -- how to build it ---------------------------------------------------------------------------

    def reconstruct(self, gen: Builder) -> None:
        """Emit instructions that push the value; called if it has no source, or a new object is
        needed.
        """
        raise GraphBreak("BD015", f"{self.describe()} is needed after the graph")

    def complete(self, gen: Builder) -> None:
        """Build an object and its contents before it is hashed or iterated over."""
