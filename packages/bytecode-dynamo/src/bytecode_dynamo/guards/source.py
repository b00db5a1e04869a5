"""Where a value comes from, seen from the start of a frame.

A ``Source`` is an immutable path: a root (argument, global, built-in, free variable, constant) and
steps (attribute, item, call). Its text (``name``), its value now (``resolve``), the instructions
that load it again (``emit``) and the native guard path (``paths.py``) follow from the declared root
and steps. Sources compare and hash by structure, so they are keys.

    AttrSource(LocalSource("self"), "weight").name == "L['self'].weight"

The text is Python in which ``L``, ``G``, ``B`` and ``C`` are the mappings of arguments, globals,
built-ins and free variables.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar
from weakref import ReferenceType

from bytecode_dynamo.bytecode import Code, Emitter, has_raw_cells

from .step import PLAIN_EQUALITY, Attribute, Call, Item, Step, describe, format_constant

NAMESPACES = ("__dict__", "_buffers", "_modules", "_parameters")
"""Attributes whose items a program reads as attributes."""


class Scope(NamedTuple):
    """What the roots of sources are looked up in: ``source.resolve(scope)``.

    ``locals`` maps argument names to values as they are passed, ``closure`` the names of free
    variables to their cells; ``computed`` keeps what was computed, in a check of many guards.
    """

    locals: Mapping[str, Any]
    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    closure: Mapping[str, CellType]
    computed: dict[Source, Any] | None = None


def scope_of(function: FunctionType, arguments: Mapping[str, Any]) -> Scope:
    """The scope of a call: ``arguments`` by parameter name."""
    code: CodeType = function.__code__
    closure = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return Scope(arguments, function.__globals__, function.__builtins__, closure)  # pyright: ignore[reportAttributeAccessIssue]


class SourceEmitter(Emitter):
    """An emitter that knows which variables are cells, so that it can load sources."""

    def __init__(self, code: Code, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cells = frozenset(code.cellvars)
        self.raw_cells = has_raw_cells(code)

    def load_argument(self, name: str) -> None:
        """Push an argument as it was passed (as long as the variable was not assigned)."""
        if name not in self.cells:
            self.load_fast(name)
        elif self.raw_cells:
            self.load_closure(name)
        else:
            self.load_deref(name)


_Class = TypeVar("_Class", bound=type)


def hashed_once(cls: _Class) -> _Class:
    """Decorator that caches the hash: paths share prefixes, so each step is hashed once."""
    decorated: Any = cls
    compute: Any = cls.__hash__

    def cached_hash(self: Any) -> int:
        value = self.__dict__.get("_hash")
        if value is None:
            value = self.__dict__["_hash"] = compute(self)
        return value

    decorated.__hash__ = cached_hash
    return cls


class Source(ABC):
    """One path; see the module's docstring."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Python text of the path."""

    @property
    def shown(self) -> str:
        """The path as the program writes it, for messages."""
        return self.name

    @property
    def runs_program(self) -> bool:
        """Whether following the path runs a function of the program, which does what the capture
        saw only if all other guards hold.
        """
        return False

    @abstractmethod
    def resolve(self, scope: Scope) -> Any:
        """The value now; raises what following the path raises."""

    @abstractmethod
    def emit(self, emitter: SourceEmitter) -> None:
        """Append instructions that push the value."""

    @property
    def parent(self) -> Source | None:
        """The source one step nearer to the root, or None at the root."""
        return None

    def path(self) -> Iterator[Source]:
        """This source and its parents, this one first."""
        at: Source | None = self
        while at is not None:
            yield at
            at = at.parent

    @property
    def root(self) -> Source:
        """The end of the path."""
        return list(self.path())[-1]

    def __str__(self) -> str:
        return self.name


@hashed_once
@dataclass(frozen=True)
class VariableSource(Source):
    """A variable of the frame: its text, the field of ``Scope`` that has it, what loads it."""

    variable: str
    text: ClassVar[str]
    mapping: ClassVar[str]
    load: ClassVar[Callable[[SourceEmitter, str], None]]

    @property
    def name(self) -> str:
        return self.text.format(self.variable)

    @property
    def shown(self) -> str:
        return self.variable

    def resolve(self, scope: Scope) -> Any:
        return getattr(scope, self.mapping)[self.variable]

    def emit(self, emitter: SourceEmitter) -> None:
        type(self).load(emitter, self.variable)


class LocalSource(VariableSource):
    """An argument as it was passed; in a resume function a cell variable is the raw cell."""

    text, mapping, load = "L[{!r}]", "locals", SourceEmitter.load_argument


@hashed_once
@dataclass(frozen=True)
class StackSource(LocalSource):
    """An argument of a resume function that was on the stack; ``written`` is its expression."""

    written: str = field(default="", compare=False)

    @property
    def shown(self) -> str:
        return self.written


class GlobalSource(VariableSource):
    """A variable of the function's globals."""

    text, mapping, load = "G[{!r}]", "globals", SourceEmitter.load_global


class Shadowed(LookupError):
    """A global variable has the name of a built-in one."""


class BuiltinSource(VariableSource):
    """A name that is not in the function's globals but in its built-ins; guards check both."""

    text, mapping, load = "B[{!r}]", "builtins", SourceEmitter.load_global

    def resolve(self, scope: Scope) -> Any:
        if self.variable in scope.globals:
            raise Shadowed(f"the global variable {self.variable} hides the built-in one")
        return super().resolve(scope)


class ClosureCellSource(VariableSource):
    """The cell of a free variable."""

    text, mapping, load = "C[{!r}]", "closure", SourceEmitter.load_closure


class ClosureSource(VariableSource):
    """The contents of a free variable's cell."""

    text, mapping, load = "C[{!r}].cell_contents", "closure", SourceEmitter.load_deref

    def resolve(self, scope: Scope) -> Any:
        return scope.closure[self.variable].cell_contents


@hashed_once
@dataclass(frozen=True)
class NamespaceSource(Source):
    """The dict of the function's globals or built-ins, for guards that a name is absent."""

    builtin: bool

    @property
    def name(self) -> str:
        return "builtins" if self.builtin else "globals()"

    def resolve(self, scope: Scope) -> Any:
        return scope.builtins if self.builtin else scope.globals

    def emit(self, emitter: SourceEmitter) -> None:
        raise TypeError("a namespace is not a value")


@dataclass(frozen=True, eq=False)
class ConstSource(Source):
    """An object known at compile time, which generated code refers to. Compares by identity."""

    value: Any

    @property
    def name(self) -> str:
        return format_constant(self.value)

    @property
    def shown(self) -> str:
        return describe(self.value)

    def resolve(self, scope: Scope) -> Any:
        return self.value

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_const(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstSource) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class MappingSource(ConstSource):
    """A globals mapping that belongs to no loaded module."""

    @property
    def name(self) -> str:
        return f"globals({self.value.get('__name__')!r})"

    @property
    def shown(self) -> str:
        return str(self.value.get("__name__"))


@hashed_once
@dataclass(frozen=True)
class ChainedSource(Source):
    """A source reached from another one by the declared ``steps``."""

    base: Source

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """The steps from the base's value to this one, in order."""

    @property
    def parent(self) -> Source:
        return self.base

    @property
    def name(self) -> str:
        return reduce(lambda text, step: step.text(text), self.steps, self.base.name)

    @property
    def shown(self) -> str:
        kept = vars(self)
        if "_shown" not in kept:  # paths share prefixes, so each step is written once
            kept["_shown"] = self._show()
        return kept["_shown"]

    def _show(self) -> str:
        return reduce(lambda text, step: step.text(text), self.steps, self.base.shown)

    def resolve(self, scope: Scope) -> Any:
        return reduce(lambda value, step: step.take(value), self.steps, self.base.resolve(scope))

    def emit(self, emitter: SourceEmitter) -> None:
        load = partial(self.base.emit, emitter)
        for step in self.steps:
            load = partial(step.emit, emitter, load)
        load()


@hashed_once
@dataclass(frozen=True)
class AttrSource(ChainedSource):
    """``base.attribute``. ``generic``: through ``object.__getattribute__``, even if the class
    overrides it.
    """

    attribute: str
    generic: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        attribute = Attribute(self.attribute)
        if not self.generic:
            return (attribute,)
        return (Call(object.__getattribute__, attribute.text("{}"), (self.attribute,)),)


@hashed_once
@dataclass(frozen=True, eq=False)
class ItemSource(ChainedSource):
    """``base[key]`` of a list, tuple or dict; ``key`` is a constant or the dict's own key object.

    ``lookup``, such as ``dict.__getitem__``, is used for subclasses that override it.
    """

    key: Any
    lookup: Any = None

    def __eq__(self, other: object) -> bool:
        if type(other) is not ItemSource or type(self.key) is not type(other.key):
            return False
        same = self.key is other.key or (self._is_plain() and self.key == other.key)
        return same and self.lookup is other.lookup and self.base == other.base

    def __hash__(self) -> int:
        return hash((self.base, self.key if self._is_plain() else id(self.key)))

    def _is_plain(self) -> bool:
        return type(self.key).__eq__ in PLAIN_EQUALITY

    def _show(self) -> str:
        base = self.base
        holds_names = isinstance(base, MappingSource) or (
            isinstance(base, AttrSource) and base.attribute in NAMESPACES
        )
        if holds_names and isinstance(self.key, str) and not self.key.isdecimal():
            return Attribute(self.key).text((base.parent or base).shown)
        if holds_names and isinstance(self.key, str):  # in a Sequential or ModuleList
            return f"{(base.parent or base).shown}[{self.key}]"
        return f"{base.shown}[{describe(self.key)}]"

    @property
    def steps(self) -> tuple[Step, ...]:
        item = Item(self.key)
        return (item if self.lookup is None else Call(self.lookup, item.text("{}"), (self.key,)),)


def hidden_lookup(cls: type, base: type) -> Any:
    """The ``lookup`` for items of a subclass that stores its contents as the built-in ``base``."""
    return None if cls.__getitem__ is base.__getitem__ else base.__getitem__  # pyright: ignore


@hashed_once
@dataclass(frozen=True)
class CellSource(AttrSource):
    """The contents of the cell ``base``."""

    attribute: str = "cell_contents"

    @property
    def shown(self) -> str:
        is_variable = isinstance(self.base, VariableSource)
        return self.base.shown if is_variable else f"{self.base.shown}.{self.attribute}"


class AppliedSource(ChainedSource):
    """``function(base)``; generated code refers to the function, and ``text`` shows the call."""

    function: ClassVar[Callable[[Any], Any]]
    text: ClassVar[str]

    @property
    def steps(self) -> tuple[Step, ...]:
        return (Call(type(self).function, self.text),)


class TypeSource(AppliedSource):
    """``type(base)``."""

    function, text = type, "type({})"


class ReferentSource(AppliedSource):
    """``base()`` of a weak reference."""

    function, text = ReferenceType.__call__, "{}()"


def class_entry(cls: type, index: int, attribute: str) -> Any:
    """The raw attribute that the class at ``index`` of the method resolution order stores under a
    name.
    """
    return cls.__mro__[index].__dict__[attribute]


@hashed_once
@dataclass(frozen=True)
class ClassDictSource(ChainedSource):
    """``class_entry`` of the class ``base``."""

    index: int
    attribute: str

    @property
    def steps(self) -> tuple[Step, ...]:
        text = f"{{}}.__mro__[{self.index}].__dict__[{self.attribute!r}]"
        return (Call(class_entry, text, (self.index, self.attribute)),)

    @property
    def shown(self) -> str:
        return Attribute(self.attribute).text(self.base.shown)


def class_attribute(base: Source, cls: type, attribute: str) -> ClassDictSource | None:
    """The source of an attribute in the first class of the MRO of ``cls`` that has it."""
    for index, owner in enumerate(cls.__mro__):
        if attribute in owner.__dict__:
            return ClassDictSource(base, index, attribute)
    return None


@hashed_once
@dataclass(frozen=True)
class DefaultsSource(ChainedSource):
    """A default of the function ``base``: positional (an index) or keyword-only (a name)."""

    key: int | str

    @property
    def steps(self) -> tuple[Step, ...]:
        by_name = isinstance(self.key, str)
        return Attribute("__kwdefaults__" if by_name else "__defaults__"), Item(self.key)


def globals_source(mapping: dict[str, Any]) -> Source:
    """A source for the globals of another module; the module itself if it is loaded."""
    module = sys.modules.get(mapping.get("__name__", ""))
    if module is not None and getattr(module, "__dict__", None) is mapping:
        return ConstSource(module)
    return MappingSource(mapping)
