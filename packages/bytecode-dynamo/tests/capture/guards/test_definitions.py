"""Metaclasses, bases, what classes say of themselves, numbers and texts of a program's classes, exceptions, names that are absent."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch

from .changing import States, box, changed, check_state, rows_of, setting

STATES: States = {}
row, rows = rows_of(STATES)
HERE = sys.modules[__name__]
GONE, LEVEL = 3, 2


class First:
    v = 1


class Second:
    v = 2


class Derived(First):
    pass


class Failing(ValueError):
    def __str__(self):
        return "ab"


class Closest(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value):
        return cls.A


class Plan(abc.ABC):
    @abc.abstractmethod
    def m(self): ...


class Done(Plan):
    def m(self):
        return 2


class Place:
    __match_args__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1, 2


@typing.runtime_checkable
class Quacks(typing.Protocol):
    def quack(self): ...


class Chosen(types.ModuleType):
    def __getattribute__(self, name):
        return 55 if name == "v" else super().__getattribute__(name)


class Number(int):
    pass


class Text(str):
    pass


@dataclasses.dataclass
class After:
    a: int = 1

    def __post_init__(self):
        self.b = self.a + 1


class Scaled:
    def scale(self, x, k=2):
        return x * k

    twice = functools.partialmethod(scale, k=2)


PLAIN, NUMBER, TEXT, MODULE = Derived(), Number(3), Text("ab"), types.ModuleType("guarded_module")
MODULE.v = 2  # type: ignore[attr-defined]
TENSORS = [torch.ones(3), torch.ones(3)]


def attempt(make: Callable[[], Any], otherwise: Any = 9) -> Any:
    try:
        return make()
    except TypeError:
        return otherwise


def handled(x):
    try:
        raise Failing("q", 1)
    except KeyError:
        return x - 1
    except ValueError as error:
        return x * len(str(error)) + len(error.args)


def unnamed(x):
    try:
        return x * GONE
    except NameError:
        return x - 1


def matched(x):
    match Place():
        case Place(1, 2):
            return x + 1
        case Place(a, b):
            return x * a - b


def imports(x):
    import math

    return x * math.tau


def nested_autocast(x):
    with torch.autocast("cpu", torch.float16):
        inner = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        with torch.autocast("cpu"):
            return (x[:, None] @ x[None]).dtype, inner


def bases(of: type, before: tuple[type, ...], after: tuple[type, ...]) -> Any:
    return changed(
        lambda: setattr(of, "__bases__", after), lambda: setattr(of, "__bases__", before)
    )


def settings(get: Callable[[], Any], put: Callable[[Any], Any], new: Any) -> Any:
    old = get()
    return changed(lambda: put(new), lambda: put(old))


def fresh(
    make: Callable[[], Any], program: Callable[[Any, Any], Any], **new: Any
) -> Callable[[], Any]:
    """Attributes of a class made anew are set; the program gets the class's metaclass instance or object."""

    def row_of() -> Any:
        obj = make()
        return (lambda x: program(obj, x)), setting(
            obj if isinstance(obj, type) else type(obj), **new
        )

    return row_of


def meta(program: Callable[[Any, Any], Any], **new: Any) -> Callable[[], Any]:
    """Attributes of a metaclass are set."""

    def row_of() -> Any:
        cls = type("Meta", (type,), {})("Made", (), {})
        return (lambda x: program(cls, x)), setting(type(cls), **new)

    return row_of


rows(
    isinstance_by_bases=lambda: (
        lambda x: x + isinstance(PLAIN, Second),
        bases(Derived, (First,), (Second,)),
    ),
    issubclass_by_bases=lambda: (
        lambda x: x + issubclass(Derived, Second),
        bases(Derived, (First,), (Second,)),
    ),
    order=lambda: (
        lambda x: x * len(Derived.__mro__) + len(Derived.mro()),
        bases(Derived, (First,), (Second, First)),
    ),
    handler_by_bases=lambda: (handled, bases(Failing, (ValueError,), (KeyError,))),
    exception_text=lambda: (handled, setting(Failing, __str__=lambda s: "abcde")),
    exception_init=lambda: (
        handled,
        setting(Failing, __init__=lambda s, *a: ValueError.__init__(s, 1, 2, 3)),
    ),
    exception_arguments=lambda: (handled, setting(Failing, args=property(lambda s: (1,) * 5))),
    enum_missing=lambda: (
        lambda x: x * attempt(lambda: Closest(5).value),
        setting(Closest, _missing_=classmethod(lambda c, v: Closest.A.x)),
    ),
    abstract=lambda: (
        lambda x: x * attempt(lambda: Done().m()),
        settings(
            lambda: Done.__abstractmethods__,
            lambda v: setattr(Done, "__abstractmethods__", v),
            frozenset({"m"}),
        ),
    ),
    match_arguments=lambda: (matched, setting(Place, __match_args__=("b", "a"))),
    protocol=lambda: (lambda x: x + isinstance(PLAIN, Quacks), setting(PLAIN, quack=lambda: 1)),
    protocol_in_class=lambda: (
        lambda x: x + isinstance(PLAIN, (int, Quacks)),
        setting(First, quack=lambda s: 1),
    ),
    callable_added=lambda: (lambda x: x + callable(PLAIN), setting(First, __call__=lambda s: 1)),
    class_of_module=lambda: (
        lambda x: x * MODULE.v,
        settings(lambda: types.ModuleType, lambda c: setattr(MODULE, "__class__", c), Chosen),
    ),
    name_deleted=lambda: (
        unnamed,
        changed(lambda: delattr(HERE, "GONE"), lambda: setattr(HERE, "GONE", 3)),
    ),
    name_defined=lambda: (lambda x: attempt_name(x), setting(HERE, NEW_NAME=5)),
    post_init=lambda: (
        lambda x: x * After(2).b,
        setting(After, __post_init__=lambda s: setattr(s, "b", 40)),
    ),
    partial_method=lambda: (
        lambda x: Scaled().twice(x),
        setting(Scaled, twice=functools.partialmethod(Scaled.scale, k=5)),
    ),
    import_function=lambda: (
        imports,
        setting(
            __import__("builtins"),
            __import__=lambda name, *a, real=__import__: (
                box(tau=3) if name == "math" else real(name, *a)
            ),
        ),
    ),
    recursion_limit=lambda: (
        lambda x: x * sys.getrecursionlimit(),
        settings(sys.getrecursionlimit, sys.setrecursionlimit, 2345),
    ),
    autocast_dtype=lambda: (
        lambda x: str(torch.get_autocast_dtype("cpu")),
        settings(
            lambda: torch.get_autocast_dtype("cpu"),
            functools.partial(torch.set_autocast_dtype, "cpu"),
            torch.float16,
        ),
    ),
    autocast_cache=lambda: (
        lambda x: torch.is_autocast_cache_enabled(),
        settings(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    ),
    autocast_nested=lambda: (
        nested_autocast,
        settings(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    ),
    shared_memory=lambda: (
        lambda x: x + TENSORS[0].is_shared(),
        changed(lambda: TENSORS[0].share_memory_(), lambda: TENSORS.__setitem__(0, torch.ones(3))),
    ),
    retains_grad=lambda: (
        lambda x: TENSORS[1].retains_grad,
        changed(
            lambda: TENSORS.__setitem__(1, retaining()),
            lambda: TENSORS.__setitem__(1, torch.ones(3)),
        ),
    ),
    property_added_to_written=fresh(
        lambda: type("C", (), {})(),
        lambda o, x: (setattr(o, "p", 4), x * o.p)[1],
        p=property(lambda s: 7, lambda s, v: None),
    ),
    qualified_name=fresh(
        lambda: type("C", (), {}), lambda c, x: x * len(c.__qualname__), __qualname__="longer"
    ),
    class_name=fresh(
        lambda: type("C", (), {}), lambda c, x: x * len(c.__name__), __name__="longer"
    ),
    module_of_class=fresh(
        lambda: type("C", (), {}), lambda c, x: x * len(c.__module__), __module__="m"
    ),
    text_of_class=fresh(
        lambda: type("C", (), {}), lambda c, x: x * len(c.__doc__ or ""), __doc__="text"
    ),
    class_subscript=fresh(
        lambda: type("C", (), {"__class_getitem__": classmethod(lambda c, k: 3)}),
        lambda c, x: x * c[1],
        __class_getitem__=classmethod(lambda c, k: 8),
    ),
    field_of_tuple=fresh(
        lambda: collections.namedtuple("N", "a b")(1, 2),
        lambda o, x: x * o.a,
        a=property(lambda s: 9),
    ),
    fields_of_tuple=fresh(
        lambda: collections.namedtuple("N", "a b")(1, 2),
        lambda o, x: x * len(o._fields),
        _fields=("a",),
    ),
    missing_added=fresh(
        lambda: type("D", (dict,), {"__missing__": lambda s, k: 3})(),
        lambda o, x: x * o["q"],
        __missing__=lambda s, k: 8,
    ),
    hash_of_key=fresh(
        lambda: type("K", (), {})(),
        lambda o, x: x * {3: 1}.get(o, 5),
        __hash__=lambda s: 3,
        __eq__=lambda s, o: True,
    ),
    divmod_added=fresh(
        lambda: type("N", (int,), {})(7),
        lambda o, x: x * divmod(o, 2)[1],
        __divmod__=lambda s, n: (2, 9),
    ),
    metaclass_bool=meta(lambda c, x: x + 1 if c else x, __bool__=lambda c: False),
    metaclass_len=meta(lambda c, x: x + 1 if c else x, __len__=lambda c: 0),
    metaclass_item=meta(lambda c, x: x * attempt(lambda: c[1]), __getitem__=lambda c, k: 4),
    metaclass_iter=meta(
        lambda c, x: x * attempt(lambda: len([*c])), __iter__=lambda c: iter([1, 2])
    ),
    metaclass_contains=meta(
        lambda c, x: x * attempt(lambda: 1 + (3 in c)), __contains__=lambda c, v: True
    ),
    metaclass_call=meta(lambda c, x: x + hasattr(c(), "zz"), __call__=lambda c: box(zz=1)),
    metaclass_eq=meta(lambda c, x: x + (c == 3), __eq__=lambda c, o: True, __hash__=lambda c: 1),
    metaclass_text=meta(lambda c, x: x * len(f"{c}" + str(c)), __str__=lambda c: "short"),
    metaclass_repr=meta(lambda c, x: x * len(repr(c)), __repr__=lambda c: "short"),
    metaclass_getattr=meta(lambda c, x: x * getattr(c, "zork", 1), __getattr__=lambda c, n: 6),
    metaclass_property=meta(lambda c, x: x * getattr(c, "zork", 1), zork=property(lambda c: 8)),
)
for name, program, new in (
    ("__format__", lambda x: x * len(f"{NUMBER}"), lambda s, f: "long"),
    ("__index__", lambda x: x[:NUMBER].sum(), lambda s: 1),
    ("__str__", lambda x: x * len(str(NUMBER)), lambda s: "abc"),
    ("__bool__", lambda x: x + 1 if NUMBER else x, lambda s: False),
    ("__hash__", lambda x: x * {3: 4}.get(NUMBER, 9), lambda s: 77),
    ("__eq__", lambda x: x + (NUMBER == 3), lambda s, o: False),
    ("__lt__", lambda x: x + (NUMBER < 5), lambda s, o: False),
    ("__neg__", lambda x: x * -NUMBER, lambda s: 50),
    ("__abs__", lambda x: x * abs(NUMBER), lambda s: 50),
    ("__int__", lambda x: x * int(NUMBER), lambda s: 50),
    ("__float__", lambda x: x * float(NUMBER), lambda s: 50.0),
    ("__round__", lambda x: x * round(NUMBER), lambda s, n=None: 50),
    ("__radd__", lambda x: x * (1 + NUMBER), lambda s, o: 50),
    ("__rmul__", lambda x: (x * NUMBER, [1] * NUMBER), lambda s, o: 50),
    ("real", lambda x: x * NUMBER.real, property(lambda s: 70)),
    ("bit_length", lambda x: x * NUMBER.bit_length(), lambda s: 70),
):
    STATES[f"number {name}"] = lambda p=program, n=name, v=new: (p, setting(Number, **{n: v}))
for name, program, new in (
    ("__len__", lambda x: x * len(TEXT), lambda s: 9),
    ("__add__", lambda x: x * len(TEXT + "c"), lambda s, o: "z"),
    ("__iter__", lambda x: x * len([c for c in TEXT]), lambda s: iter("xyz")),
    ("__contains__", lambda x: x + ("a" in TEXT), lambda s, o: False),
    ("__getitem__", lambda x: x * len(TEXT[0]), lambda s, o: "xyz"),
    ("__hash__", lambda x: x * {"ab": 2}.get(TEXT, 7), lambda s: 3),
    ("__str__", lambda x: x * len("".join([TEXT])) * len(str(TEXT)), lambda s: "abcd"),
    ("upper", lambda x: x * len(TEXT.upper()), lambda s: "xyzw"),
):
    STATES[f"text {name}"] = lambda p=program, n=name, v=new: (p, setting(Text, **{n: v}))
STATES["number attribute"] = lambda: (
    lambda x: x * getattr(NUMBER, "tag", 1),
    setting(NUMBER, tag=6),
)


@row
def defaults_of_tuple():
    named = collections.namedtuple("N", "a b", defaults=[2])
    return (lambda x: x * named(1).b), setting(named.__new__, __defaults__=(9,))


def decorated():
    """A function in functools.wraps, a method in two of them, and a program that reads theirs."""

    def wrapping(function):
        return functools.wraps(function)(lambda *args, **named: function(*args, **named))

    outer = wrapping(lambda x, a=2: x * a)
    holder = types.SimpleNamespace(outer=outer)
    holder.method = types.MethodType(wrapping(wrapping(lambda self, x, *, b=3: x)), holder)

    def program(x):
        described = [str(inspect.signature(each)) for each in (holder.outer, holder.method)]
        return x + 1, described, len(inspect.signature(outer).parameters)

    return outer, holder, program


@row
def signature_that_is_set():
    outer, _, program = decorated()
    return program, setting(outer, __signature__=inspect.signature(lambda q, r, s: q))


@row
def signature_of_what_is_wrapped():
    outer, _, program = decorated()
    return program, setting(outer, __wrapped__=lambda p, q, r, s: p)


@row
def defaults_in_a_signature():
    outer, _, program = decorated()
    return program, setting(outer.__wrapped__, __defaults__=(7,))


def described(function):
    return lambda x: (x + 1, str(inspect.signature(function)))


@row
def annotations_in_a_signature():
    def function(x: int, *, k: str = "k") -> int: ...

    return described(function), setting(function, __annotations__={"x": float})


@row
def a_tuple_in_a_signature():
    def function(x, *, k=(1, (2, 3))): ...

    return described(function), setting(function, __kwdefaults__={"k": (1, (2, 4))})


@row
def a_list_in_a_signature():
    held = [1]

    def function(x, k=held): ...

    return described(function), changed(lambda: held.append(2), held.pop)


@row
def an_object_in_a_signature():
    held = types.SimpleNamespace(n=1)

    def function(x, k=held): ...

    return described(function), setting(held, n=2)


@row
def signature_of_another_method():
    _, holder, program = decorated()
    return program, setting(holder, method=types.MethodType(lambda self, y: y, holder))


@row
def members_by_name():
    numbered = enum.Enum("Numbered", "A B")
    members = numbered._member_map_
    return (lambda x: x * numbered["A"].value), changed(
        lambda: members.update(A=numbered.B), lambda: members.update(A=numbered.A)
    )


def attempt_name(x):
    try:
        return x * NEW_NAME  # type: ignore[name-defined]
    except NameError:
        return x - 1


def retaining() -> torch.Tensor:
    found = torch.ones(3, requires_grad=True) * 2
    found.retain_grad()
    return found


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)


def test_nested_autocast_is_compiled_once():
    captured = bd.optimize("eager")(nested_autocast)
    for _ in range(3):
        captured(torch.ones(3))
    assert bd.counters["graphs"] == 1
