"""Guard records: what each kind of guard says, in Python.

The meaning of each kind, for a value ``v`` found by its source (``failures.py`` says the same in
Python):

=============  ===========================  =======================================================
kind           expected                     holds when
=============  ===========================  =======================================================
TYPE_IS        a class                      ``type(v) is expected``
IDENTITY       an object                    ``v is expected``
EQUALS         a number, str, bytes, None,  same type and equal; floats bit by bit
               dtype, device, Size, ...     (or a tuple of these)
LENGTH         int                          ``len(v) == expected``
DICT_KEYS      tuple of keys                ``tuple(v) == expected``, in this order
HAS_ATTR       name                         ``expected in vars(v)``
NO_ATTR        name                         ``expected not in vars(v)`` (of a dict: in the dict
                                            itself); says nothing of the class
TENSOR         TensorFacts                  the tensor's metadata are these
ALIASED        a source                     ``v`` is the object at the other source
NOT_ALIASED    a source                     ``v`` is not the object at the other source
FUNCTION_CODE  a function                   ``v`` is a function with the same ``__code__``, number
                                            of defaults and names of keyword-only defaults
CLASS_ATTR     (name, object or ABSENT)     the class ``v`` finds this object in its MRO's dicts
GLOBAL_STATE   GlobalState                  the thread's torch state is this (source: STATE)
FINITE         True                         ``v`` is a float, neither infinite nor NaN
CUSTOM         an ``Answer``                 ``expected(v)``; runs Python
=============  ===========================  =======================================================

``IDENTITY`` of an object that can die holds it weakly: when it dies, the program and its cache
entry are gone for good.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import CodeType, FunctionType
from typing import Any

import sympy
import torch
from symshapes import SizeGuard

from bytecode_dynamo.errors import Place
from bytecode_dynamo.marker import Marker

from .global_state import GlobalState
from .source import ConstSource, Scope, Shadowed, Source
from .step import describe

ABSENT = Marker("absent")
"""In CLASS_ATTR: no class of the MRO has the attribute."""


class GuardKind(Enum):
    """What a guard requires of a value; see the module's table."""

    TYPE_IS = auto()
    IDENTITY = auto()
    EQUALS = auto()
    LENGTH = auto()
    DICT_KEYS = auto()
    HAS_ATTR = auto()
    NO_ATTR = auto()
    TENSOR = auto()
    ALIASED = auto()
    NOT_ALIASED = auto()
    FUNCTION_CODE = auto()
    CLASS_ATTR = auto()
    GLOBAL_STATE = auto()
    FINITE = auto()
    CUSTOM = auto()


@dataclass(frozen=True)
class StateSource(Source):
    """The source of GLOBAL_STATE: the thread's torch state."""

    @property
    def name(self) -> str:
        return "torch"

    def resolve(self, scope: Scope) -> GlobalState:
        return GlobalState.now()

    def emit(self, emitter) -> None:
        raise TypeError("the state of the thread is not a value")


STATE = StateSource()


@dataclass(frozen=True, slots=True, eq=False)
class GuardRecord:
    """One guard."""

    source: Source
    kind: GuardKind
    expected: Any


class Answer:
    """A CUSTOM predicate: ``read(value)`` gives the same again.

    ``text`` shows what is read, with the value's expression as ``{}``; ``parts`` instead that of
    each item, if the answer is a tuple. An exception of the classes ``absent`` is another answer.
    """

    __slots__ = ("absent", "expected", "parts", "read", "same", "text")

    def __init__(
        self,
        text: str,
        read: Callable[[Any], Any],
        expected: Any,
        same: Callable[[Any, Any], bool] = operator.eq,
        absent: tuple[type[Exception], ...] = (),
        parts: tuple[str, ...] = (),
    ) -> None:
        self.text, self.read, self.expected, self.parts = text, read, expected, parts
        self.same, self.absent = same, absent

    def __call__(self, value: Any) -> bool:
        try:
            return self.same(self.read(value), self.expected)
        except self.absent:
            return False

    def change(self, name: str, value: Any) -> str:
        """The failure as one line."""
        try:
            now = self.read(value)
        except Exception as error:
            return f"{self.shown(name)} was {describe(self.expected)}, now {raised(error)}"
        if self.parts:
            for part, old, new in zip(self.parts, self.expected, now):
                if not self.same(old, new):
                    return changed(part.replace("{}", name), old, new)
        return changed(self.shown(name), self.expected, now)

    def shown(self, name: str) -> str:
        """What is read."""
        return self.text.replace("{}", name)


def raised(error: Exception) -> str:
    """What an exception says of a value, in a message."""
    if isinstance(error, Shadowed):
        return str(error)
    if isinstance(error, KeyError | AttributeError | IndexError):
        return "it is missing"
    if isinstance(error, ValueError) and str(error) == "Cell is empty":
        return "it is unbound"
    return f"reading it raises {type(error).__name__}: {error}"


def changed(what: str, old: Any, new: Any) -> str:
    """A change as one line; objects that look alike are told apart."""
    was, now = describe(old), describe(new)
    if was == now:
        now = f"another {now.removeprefix('a ')}"
    return f"{what} was {was}, now {now}"


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What FUNCTION_CODE requires of a function; an equivalent function may replace it."""

    name: str
    code: CodeType
    defaults: int | None
    keyword_defaults: tuple[str, ...] | None

    @classmethod
    def of(cls, function: FunctionType) -> FunctionFacts:
        """The facts of a function as it is now."""
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        return cls(
            function.__qualname__,
            function.__code__,
            None if defaults is None else len(defaults),
            None if keywords is None else tuple(keywords),
        )

    def __eq__(self, other: object) -> bool:
        # Code objects compare by contents, which is not enough.
        if not isinstance(other, FunctionFacts) or other.code is not self.code:
            return False
        return other.defaults == self.defaults and other.keyword_defaults == self.keyword_defaults

    def __hash__(self) -> int:
        return id(self.code)


@dataclass(frozen=True, slots=True)
class ShapeGuards:
    """Conditions on sizes: ``symbols`` says where the value of each symbol comes from
    (``SizeSource``, ``StrideSource``, ``StorageOffsetSource`` or a source of an int or float).
    """

    symbols: Mapping[sympy.Symbol, Source] = field(default_factory=dict)
    guards: Sequence[SizeGuard] = ()


class Guards:
    """Collects records, each once."""

    def __init__(self) -> None:
        self._records: list[GuardRecord] = []
        self._known: dict[Hashable, list[Any]] = {}
        self._asked: list[GuardRecord] | None = None
        self.place: Callable[[], Place | None] | None = None
        """Where evaluation stands, if somebody wants to know who requires each guard."""
        self.asked_by: dict[int, Place] = {}
        """Per guard, by position, the line that required it; only with ``place``."""

    @contextmanager
    def asked(self) -> Iterator[list[GuardRecord]]:
        """Collects the guards required within the block, including those that exist already."""
        outer, self._asked = self._asked, []
        try:
            yield self._asked
        finally:
            if outer is not None:
                outer += self._asked
            self._asked = outer

    def note(self, source: Source, kind: GuardKind, expected: Any) -> None:
        """Note a read that is guarded in another way."""
        if self._asked is not None:
            self._asked.append(GuardRecord(source, kind, expected))

    def require(self, source: Source, kind: GuardKind, expected: Any) -> None:
        """Add a guard unless the same one is there."""
        self.note(source, kind, expected)
        if kind in (GuardKind.IDENTITY, GuardKind.TYPE_IS) and isinstance(source, ConstSource):
            return  # a constant can't change
        if kind is GuardKind.FUNCTION_CODE and isinstance(expected, FunctionType):
            expected = FunctionFacts.of(expected)
        known = self._known.setdefault(_slot(source, kind, expected), [])
        for old in known:
            if same_expectation(kind, old, expected):
                return
        known.append(expected)
        if self.place is not None and (place := self.place()) is not None:
            self.asked_by[len(self._records)] = place
        self._records.append(GuardRecord(source, kind, expected))

    def require_global_state(self, state: GlobalState | None = None) -> None:
        """Guard on the thread's torch state: the given one, or else the current one."""
        self.require(STATE, GuardKind.GLOBAL_STATE, state or GlobalState.now())

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[GuardRecord]:
        return iter(self._records)


def _slot(source: Source, kind: GuardKind, expected: Any) -> Hashable:
    """The key under which equal guards are found: a class has one slot per attribute, an object one
    for everything else.
    """
    if kind is GuardKind.CLASS_ATTR:
        return source, kind, expected[0]
    if kind is GuardKind.NOT_ALIASED:
        return source, kind, expected
    return source, kind


def same_expectation(kind: GuardKind, a: Any, b: Any) -> bool:
    """Whether two guards of one kind on one source require the same."""
    if a is b:
        return True
    if kind in (GuardKind.IDENTITY, GuardKind.TYPE_IS, GuardKind.CUSTOM):
        return False
    if kind is GuardKind.EQUALS:
        return same_constant(a, b)
    if kind is GuardKind.CLASS_ATTR:
        return a[0] == b[0] and a[1] is b[1]
    if kind is GuardKind.DICT_KEYS:
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    return bool(a == b)


def same_constant(a: Any, b: Any) -> bool:
    """Same type and equal, deeply; floats bit by bit (so -0.0 differs from 0.0, and a NaN equals
    itself).
    """
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if type(a) is complex:
        return same_constant(a.real, b.real) and same_constant(a.imag, b.imag)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same_constant(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, slice):
        return same_constant((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return a is b or bool(a == b)


def same_key(a: Any, b: Any) -> bool:
    """Whether two dictionary keys are interchangeable: the same object, or equal constants of one
    type.
    """
    return a is b or (type(a) in KEY_TYPES and same_constant(a, b))


KEY_TYPES = (int, float, bool, str, bytes, tuple, complex, torch.device, torch.Size)
