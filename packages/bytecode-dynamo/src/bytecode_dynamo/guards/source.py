"""Where a value comes from, seen from the start of a frame.

A ``Source`` is an immutable path: a root (argument, global, built-in, free variable, constant) and
steps (attribute, item, cell contents, type, ...). It can be printed (``name``), followed now
(``resolve``), and written as instructions that load the value again (``emit``). Guards follow the
same path in C (``guards.py``). Sources compare and hash by structure, so they are keys.

    AttrSource(LocalSource("self"), "weight").name == "L['self'].weight"

The text is Python in which ``L``, ``G``, ``B`` and ``C`` are the mappings of arguments, globals,
built-ins and free variables.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar

from bytecode_dynamo.bytecode import Code, Emitter, has_raw_cells


class Scope(NamedTuple):
    """What the roots of sources are looked up in: ``source.resolve(*scope)``.

    ``locals`` maps argument names to values as they are passed, ``closure`` the names of free
    variables to their cells.
    """

    locals: Mapping[str, Any]
    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    closure: Mapping[str, CellType]


def scope_of(function: FunctionType, arguments: Mapping[str, Any]) -> Scope:
    """The scope of a call: ``arguments`` by parameter name."""
    code: CodeType = function.__code__
    closure = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return Scope(arguments, function.__globals__, function.__builtins__, closure)  # pyright: ignore[reportAttributeAccessIssue]


class SourceEmitter(Emitter):
    """An emitter that knows which variables of a function are cells, so that sources can be loaded
    in it.
    """

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
    """Decorator: objects keep their hash. Paths share their beginnings, so that each step is hashed
    once.
    """
    decorated: Any = cls
    compute: Any = cls.__hash__

    def remembered(self: Any) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = compute(self)
        return found

    decorated.__hash__ = remembered
    return cls


class Source(ABC):
    """One path; see the module's documentation."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Python text of the path."""

    @abstractmethod
    def resolve(
        self,
        locals: Mapping[str, Any],
        globals: Mapping[str, Any],
        builtins: Mapping[str, Any],
        closure: Mapping[str, CellType],
    ) -> Any:
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
    """A variable that the frame can name; ``text`` shows it."""

    variable: str
    text: ClassVar[str]

    @property
    def name(self) -> str:
        return self.text.format(self.variable)


class LocalSource(VariableSource):
    """An argument of the frame as it was passed; in a resume function a cell variable is the raw
    cell.
    """

    text = "L[{!r}]"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return locals[self.variable]

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_argument(self.variable)


class GlobalSource(VariableSource):
    """A variable of the function's globals."""

    text = "G[{!r}]"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return globals[self.variable]

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_global(self.variable)


class BuiltinSource(VariableSource):
    """A name that is not in the function's globals but in its built-ins; guards check both."""

    text = "B[{!r}]"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return builtins[self.variable]

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_global(self.variable)


class ClosureSource(VariableSource):
    """The contents of a free variable's cell."""

    text = "C[{!r}].cell_contents"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return closure[self.variable].cell_contents

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_deref(self.variable)


class ClosureCellSource(VariableSource):
    """The cell itself of a free variable."""

    text = "C[{!r}]"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return closure[self.variable]

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_closure(self.variable)


@hashed_once
@dataclass(frozen=True)
class NamespaceSource(Source):
    """The function's globals, or its built-ins, as a dict: only guards that a name is absent ask
    for them.
    """

    builtin: bool

    @property
    def name(self) -> str:
        return "builtins" if self.builtin else "globals()"

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return builtins if self.builtin else globals

    def emit(self, emitter: SourceEmitter) -> None:
        raise TypeError("a namespace is not a value")


PLAIN_EQUALITY = frozenset(
    kind.__eq__ for kind in (int, float, str, bytes, tuple, complex, frozenset, type(None), type)
)
_SHOWN = (FunctionType, BuiltinFunctionType, ModuleType)


def _shown(value: Any) -> str:
    """The text of a constant; that of other objects is code of their classes, or as long as a
    tensor.
    """
    is_shown = type(value).__eq__ in PLAIN_EQUALITY or isinstance(value, _SHOWN)
    return repr(value) if is_shown else f"<{type(value).__name__} {id(value):x}>"


@dataclass(frozen=True, eq=False)
class ConstSource(Source):
    """An object known at compile time; generated code holds it. Compares by the identity of the
    object.
    """

    value: Any

    @property
    def name(self) -> str:
        return _shown(self.value)

    def resolve(self, locals, globals, builtins, closure) -> Any:
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


@hashed_once
@dataclass(frozen=True)
class ChainedSource(Source):
    """A source that is one step from another one."""

    base: Source

    @property
    def parent(self) -> Source:
        return self.base

    @abstractmethod
    def step(self, value: Any) -> Any:
        """Take the step from the base's value."""

    def resolve(self, locals, globals, builtins, closure) -> Any:
        return self.step(self.base.resolve(locals, globals, builtins, closure))


@hashed_once
@dataclass(frozen=True)
class AttrSource(ChainedSource):
    """``base.attribute``, by the ordinary rules of attribute access; ``generic``: whatever
    ``__getattribute__`` says.
    """

    attribute: str
    generic: bool = False

    @property
    def name(self) -> str:
        if self.attribute.isidentifier():
            return f"{self.base.name}.{self.attribute}"
        return f"getattr({self.base.name}, {self.attribute!r})"

    def step(self, value: Any) -> Any:
        return (
            object.__getattribute__(value, self.attribute)
            if self.generic
            else getattr(value, self.attribute)
        )

    def emit(self, emitter: SourceEmitter) -> None:
        if not self.generic:
            self.base.emit(emitter)
            emitter.load_attr(self.attribute)
            return
        emitter.load_callee_const(object.__getattribute__)
        self.base.emit(emitter)
        emitter.load_const(self.attribute)
        emitter.call(2)


@hashed_once
@dataclass(frozen=True, eq=False)
class ItemSource(ChainedSource):
    """``base[key]`` of a list, tuple or dict; ``key`` is a constant, or an object that the dict has
    as a key.

    ``lookup`` is what subclasses with another ``__getitem__`` hide, such as ``dict.__getitem__``.
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

    @property
    def name(self) -> str:
        return f"{self.base.name}[{_shown(self.key)}]"

    def step(self, value: Any) -> Any:
        return value[self.key] if self.lookup is None else self.lookup(value, self.key)

    def emit(self, emitter: SourceEmitter) -> None:
        if self.lookup is None:
            self.base.emit(emitter)
            emitter.load_item(self.key)
            return
        emitter.load_callee_const(self.lookup)
        self.base.emit(emitter)
        emitter.load_const(self.key)
        emitter.call(2)


def hidden_lookup(cls: type, base: type) -> Any:
    """The ``lookup`` of items of objects of a class whose contents are those of a built-in one."""
    return None if cls.__getitem__ is base.__getitem__ else base.__getitem__  # pyright: ignore


@hashed_once
@dataclass(frozen=True)
class CellSource(AttrSource):
    """The contents of the cell that ``base`` gives."""

    attribute: str = "cell_contents"


@hashed_once
@dataclass(frozen=True)
class ReferentSource(ChainedSource):
    """``base()`` of a weak reference."""

    @property
    def name(self) -> str:
        return f"{self.base.name}()"

    def step(self, value: Any) -> Any:
        return value()

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_callee(lambda: self.base.emit(emitter))
        emitter.call(0)


class AppliedSource(ChainedSource):
    """``function(base)`` of a function that generated code holds; ``text`` shows it."""

    function: ClassVar[Callable[[Any], Any]]
    text: ClassVar[str]

    @property
    def name(self) -> str:
        return self.text.format(self.base.name)

    def step(self, value: Any) -> Any:
        return type(self).function(value)

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_callee_const(type(self).function)
        self.base.emit(emitter)
        emitter.call(1)


class TypeSource(AppliedSource):
    """``type(base)``."""

    function = type
    text = "type({})"


@hashed_once
@dataclass(frozen=True)
class ClassDictSource(ChainedSource):
    """What a class in the method resolution order of the class ``base`` stores under a name,
    without binding it.
    """

    index: int
    attribute: str

    @property
    def name(self) -> str:
        return f"{self.base.name}.__mro__[{self.index}].__dict__[{self.attribute!r}]"

    def step(self, value: type) -> Any:
        return value.__mro__[self.index].__dict__[self.attribute]

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_attr("__mro__")
        emitter.load_item(self.index)
        emitter.load_attr("__dict__")
        emitter.load_item(self.attribute)


def class_attribute(base: Source, cls: type, attribute: str) -> ClassDictSource | None:
    """Where the class ``cls``, which ``base`` gives, finds an attribute: the first class of its MRO
    that has it.
    """
    for index, owner in enumerate(cls.__mro__):
        if attribute in owner.__dict__:
            return ClassDictSource(base, index, attribute)
    return None


@hashed_once
@dataclass(frozen=True)
class DefaultsSource(ChainedSource):
    """A default of the function ``base``: positional (index into ``__defaults__``) or keyword-only
    (name).
    """

    key: int | str

    @property
    def name(self) -> str:
        return f"{self.base.name}.{self._attribute}[{self.key!r}]"

    @property
    def _attribute(self) -> str:
        return "__kwdefaults__" if isinstance(self.key, str) else "__defaults__"

    def step(self, value: FunctionType) -> Any:
        return getattr(value, self._attribute)[self.key]

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_attr(self._attribute)
        emitter.load_item(self.key)


def globals_source(mapping: dict[str, Any]) -> Source:
    """A source for the globals of another module: the module where possible, for its text is
    short.
    """
    module = sys.modules.get(mapping.get("__name__", ""))
    if module is not None and getattr(module, "__dict__", None) is mapping:
        return ConstSource(module)
    return MappingSource(mapping)
