"""Guard records: what each kind of guard says, in Python.

The meaning of each kind, for a value ``v`` found by its source (``failure`` in this module says the
same in Python):

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
CUSTOM         a predicate (value) -> bool  the predicate says so; runs Python
=============  ===========================  =======================================================

``IDENTITY`` of an object that can die holds it weakly: when it dies, the program and its cache
entry are gone for good.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import CodeType, FunctionType
from typing import Any

import sympy
import torch
from symshapes import SizeGuard, is_of_handler

from bytecode_dynamo.marker import Marker

from .global_state import GlobalState
from .source import ConstSource, Scope, Source
from .tensor_facts import TensorFacts

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

    def __str__(self) -> str:
        return f"{self.kind.name} {self.source.name}: {describe(self.expected)}"


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


def shape_failure(shapes: ShapeGuards, scope: Scope) -> str | None:
    """The first condition on sizes that fails."""
    if not shapes.guards:
        return None
    values: dict[sympy.Symbol, Any] = {}
    for symbol, source in shapes.symbols.items():
        try:
            values[symbol] = source.resolve(scope)
        except Exception as error:
            return f"{source.name} was a size, now {type(error).__name__}"
        if type(values[symbol]) not in (int, float):
            return f"{source.name} was a number, now {describe(values[symbol])}"
    names = ", ".join(f"{shapes.symbols[s].name} is {v}" for s, v in values.items())
    for guard in shapes.guards:
        try:
            held = guard.holds(values)
        except KeyError:
            held = False
        if not held:
            return (
                f"{guard.expr} fails "
                f"({names}){f', asked at {guard.provenance}' if guard.provenance else ''}"
            )
    return None


def failure(record: GuardRecord, scope: Scope) -> str | None:
    """Why a record does not hold in a call, or None if it does."""
    name = record.source.name
    try:
        value = record.source.resolve(scope)
    except Exception as error:
        return f"{name} was {describe(record.expected)}, now {type(error).__name__}: {error}"
    return FAILURES[record.kind](name, value, record.expected, scope)


def holds(record: GuardRecord, scope: Scope) -> bool:
    """Whether a record holds in a call: :func:`failure` without its text."""
    try:
        value = record.source.resolve(scope)
    except Exception as error:
        if is_of_handler(error):
            raise
        return False
    return FAILURES[record.kind]("", value, record.expected, scope) is None


def describe(value: Any) -> str:
    """A short text of a value."""
    text = (
        value.name
        if isinstance(value, Source)
        else value.__qualname__
        if isinstance(value, type)
        else repr(value)
    )
    return text if len(text) <= 100 else f"{text[:97]}..."


Failure = Callable[[str, Any, Any, Scope], str | None]


def _compare(
    change: Callable[[Any], Any], same: Callable[[Any, Any], bool], what: str = "{}"
) -> Failure:
    def check(name: str, value: Any, expected: Any, scope: Scope) -> str | None:
        try:
            now = change(value)
        except Exception as error:
            if is_of_handler(error):
                raise
            return (
                f"{what.format(name)} was {describe(expected)}, now {type(error).__name__}: {error}"
            )
        if same(now, expected):
            return None
        return f"{what.format(name)} was {describe(expected)}, now {describe(now)}"

    return check


def _has_attr(wanted: bool) -> Failure:
    def check(name: str, value: Any, expected: str, scope: Scope) -> str | None:
        if (
            expected in (value if isinstance(value, dict) else getattr(value, "__dict__", ()))
        ) is wanted:
            return None
        if wanted:
            return f"{name}.{expected} was there, now it is not"
        return f"{name}.{expected} was not there, now it is"

    return check


def _aliased(wanted: bool) -> Failure:
    def check(name: str, value: Any, expected: Source, scope: Scope) -> str | None:
        if (value is expected.resolve(scope)) is wanted:
            return None
        return (
            f"{name} and {expected.name} were "
            f"{'the same object' if wanted else 'different objects'}, now they are not"
        )

    return check


def _function_code(name: str, value: Any, expected: FunctionFacts, scope: Scope) -> str | None:
    if type(value) is not FunctionType:
        return f"{name} was the function {expected.name}, now {describe(value)}"
    now = FunctionFacts.of(value)
    if now.code is not expected.code:
        return f"{name}.__code__ was that of {expected.name}, now that of {now.name}"
    if now.defaults != expected.defaults:
        return f"{name} had {expected.defaults} defaults, now {now.defaults}"
    if now.keyword_defaults != expected.keyword_defaults:
        return (
            f"{name}.__kwdefaults__ had the names {expected.keyword_defaults}, now "
            f"{now.keyword_defaults}"
        )
    return None


def _class_attr(name: str, value: Any, expected: tuple[str, Any], scope: Scope) -> str | None:
    attribute, wanted = expected
    if not isinstance(value, type):
        return f"{name} was a class, now {describe(value)}"
    found = next(
        (owner.__dict__[attribute] for owner in value.__mro__ if attribute in owner.__dict__),
        ABSENT,
    )
    if found is wanted:
        return None
    return f"{name}.{attribute} was {describe(wanted)}, now {describe(found)}"


def _custom(name: str, value: Any, expected: Callable[[Any], bool], scope: Scope) -> str | None:
    if expected(value):
        return None
    return f"{name} does not satisfy {getattr(expected, '__qualname__', expected)}"


def _finite(name: str, value: Any, expected: bool, scope: Scope) -> str | None:
    if type(value) is float and math.isfinite(value):
        return None
    return f"{name} was a finite float, now {describe(value)}"


def _tensor(name: str, value: Any, expected: TensorFacts, scope: Scope) -> str | None:
    return expected.failure(name, value)


def _state(name: str, value: GlobalState, expected: GlobalState, scope: Scope) -> str | None:
    return expected.difference(value)


FAILURES: dict[GuardKind, Failure] = {
    GuardKind.TYPE_IS: _compare(type, lambda a, b: a is b, "type({})"),
    GuardKind.IDENTITY: _compare(lambda v: v, lambda a, b: a is b),
    GuardKind.EQUALS: _compare(lambda v: v, same_constant),
    GuardKind.LENGTH: _compare(len, lambda a, b: a == b, "len({})"),
    GuardKind.DICT_KEYS: _compare(
        tuple, lambda a, b: len(a) == len(b) and all(map(same_key, a, b)), "tuple({})"
    ),
    GuardKind.HAS_ATTR: _has_attr(True),
    GuardKind.NO_ATTR: _has_attr(False),
    GuardKind.TENSOR: _tensor,
    GuardKind.ALIASED: _aliased(True),
    GuardKind.NOT_ALIASED: _aliased(False),
    GuardKind.FUNCTION_CODE: _function_code,
    GuardKind.CLASS_ATTR: _class_attr,
    GuardKind.GLOBAL_STATE: _state,
    GuardKind.FINITE: _finite,
    GuardKind.CUSTOM: _custom,
}


def same_key(a: Any, b: Any) -> bool:
    """Whether two dictionary keys are interchangeable: the same object, or equal constants of one
    type.
    """
    return a is b or (type(a) in KEY_TYPES and same_constant(a, b))


KEY_TYPES = (int, float, bool, str, bytes, tuple, complex, torch.device, torch.Size)
