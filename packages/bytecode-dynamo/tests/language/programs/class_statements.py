# ruff: noqa
"""Class statements inside of the program."""

import abc
import collections
import dataclasses
import enum
import functools
import typing

import torch


T = typing.TypeVar("T")


class _Base:
    scale = 2

    def go(self, t):
        return t * self.scale


def methods_and_attributes(x):
    class A:
        k = 2

        def __init__(self, v):
            self.v = v

        def go(self):
            return self.v * self.k

    return A(x).go() + A.k, A.__name__, A.__qualname__, A.__module__ == __name__


def below_each_other(x):
    class A(_Base):
        def go(self, t):
            return super().go(t) + 1

    class B(A):
        scale = 3

        def go(self, t):
            return super().go(t) * 2

    return B().go(x), isinstance(B(), _Base), issubclass(B, A), [cls.__name__ for cls in B.__mro__]


def closures(x):
    n = 3

    class A:
        m = n + 1
        both = [k * 2 for k in range(n)]

        def f(self, t):
            return n * t

    n = 4
    return A().f(x) + A.m, A.both


def decorated_methods(x):
    class A:
        made = 0

        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self._v = value + 1

        @classmethod
        def of(cls, v):
            cls.made += 1
            return cls(v)

        @staticmethod
        def double(v):
            return v * 2

        @functools.cached_property
        def late(self):
            return self._v * 5

    a = A.of(x)
    a.v = a.v * 2
    return a.v + a.late, A.double(3), A.made


def data_class(x):
    @dataclasses.dataclass
    class Point:
        a: object
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def total(self):
            return self.a * self.b

    p = Point(x)
    p.c.append(1)
    q = dataclasses.replace(p, b=3)
    return (
        p.total() + q.total(),
        p.c,
        [field.name for field in dataclasses.fields(Point)],
        Point(1) == Point(1),
    )


def frozen_data_class(x):
    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        a: int
        b: int = 2

    p = Point(1)
    try:
        p.a = 3
    except dataclasses.FrozenInstanceError as error:
        return (
            x * p.b,
            str(error),
            Point(1) < Point(2),
            repr(p).partition(".")[2],
            hash(p) == hash(Point(1)),
        )


def enumerations(x):
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

        def mixed(self):
            return self.value * 10

    class Flags(enum.IntFlag):
        A = enum.auto()
        B = enum.auto()

    return (
        x * Colour.BLUE.value,
        Colour.RED.mixed(),
        Colour(2).name,
        [c.name for c in Colour],
        int(Flags.A | Flags.B),
    )


def named_tuple(x):
    class Pair(typing.NamedTuple):
        a: object
        b: int = 3

        def prod(self):
            return self.a * self.b

    first, second = pair = Pair(x)
    return pair.prod() + second, Pair._fields, pair._replace(b=1).b


def modules(x):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 3
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, t):
            return t * self.k * self.weight.detach()

    return Net()(x)


def exceptions(x):
    class Stop(ValueError):
        def __init__(self, code):
            super().__init__(code)
            self.code = code

    try:
        raise Stop(4)
    except ValueError as error:
        return x + error.code, error.args


def special_methods(x):
    class Vector:
        def __init__(self, *items):
            self.items = items

        def __add__(self, other):
            return Vector(*(a + b for a, b in zip(self.items, other.items)))

        def __getitem__(self, k):
            return self.items[k]

        def __len__(self):
            return len(self.items)

        def __iter__(self):
            return iter(self.items)

        def __eq__(self, other):
            return self.items == other.items

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return True

    v = Vector(1, 2) + Vector(3, 4)
    with v:
        raise ValueError
    return x * v[0] + len(v), list(v), v == Vector(4, 6)


def abstract(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        def area(self):
            return 4

    try:
        Shape()
    except TypeError as error:
        return x * Square().area(), str(error)


def containers_below(x):
    class Log(list):
        def note(self, value):
            self.append(value)
            return self

    class Counts(dict):
        def __missing__(self, key):
            return 0

    counts = Counts(a=1)
    counts["b"] += 2
    return x * sum(Log().note(1).note(2)), counts["b"], counts["zz"]


def generic(x):
    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

    return Box[int](2).v * Box(x).v


def changed_afterwards(x):
    class A:
        count = 0

        def hit(self):
            A.count += 1
            return self

    A.extra = 5
    A().hit().hit()
    return x * A.count + A.extra


def tensors_as_attributes(x):
    class A:
        weight = x + 1
        table = {"a": [1]}

    A.table["a"].append(2)
    return A().weight * 2 + len(A.table["a"])


def slots(x):
    class A:
        __slots__ = ("v",)

        def __init__(self, v):
            self.v = v

    try:
        A(1).w = 2
    except AttributeError as error:
        return A(x).v + 1, type(error)


def descriptors_of_the_module(x):
    class Twice:
        def __init__(self, name):
            self.name = name

    class A:
        t = Twice("t")

    return x + 1, A.t.name, A().t is A.t


def made_by_type(x):
    Named = type("Named", (_Base,), {"v": 4, "f": lambda self: self.v})
    return Named().go(x) * Named().f(), Named.__name__


def total_order(x):
    @functools.total_ordering
    class Level:
        def __init__(self, v):
            self.v = v

        def __eq__(self, other):
            return self.v == other.v

        def __lt__(self, other):
            return self.v < other.v

    return x + 1, Level(1) <= Level(2), Level(1) >= Level(2), max(Level(1), Level(5)).v


def instance_is_returned(x):
    class Result:
        kind = "result"

        def __init__(self, t):
            self.t = t

    return Result(x + 1)


def class_is_returned(x):
    k = 3

    class Result:
        step = k

        def scaled(self, t):
            return t * k + len(type(self).__name__)

        def again(self):
            return __class__

    made = Result()
    return x + 1, Result, made.scaled(1), made.again() is Result


def instances_in_arguments(x, log):
    class Note:
        def __init__(self, v):
            self.v = v

        @property
        def twice(self):
            return self.v * 2

    log.append(Note(3))
    return x * log[-1].twice


def data_class_is_returned(x):
    @dataclasses.dataclass
    class Out:
        t: object
        n: int = 1

    return Out(x * 2)


def module_is_returned(x):
    class Net(torch.nn.Module):
        def forward(self, t):
            return t + 1

    net = Net()
    return net(x), net


def in_an_inlined_function(x):
    def make(k):
        class Adder:
            def __call__(self, t):
                return t + k

        return Adder()

    return make(1)(x) + make(2)(x), type(make(1)) is type(make(1))


def raises_inside(x, log):
    try:

        class A:
            log.append("body")
            raise ValueError("no class")

    except ValueError as error:
        return x + 1, str(error)


def bad_bases(x):
    class A: ...

    class B(A): ...

    try:

        class C(A, B): ...

    except TypeError as error:
        return x + 1, "MRO" in str(error) or "method resolution" in str(error)


def loop_of_classes(x):
    made = []
    for k in range(3):

        class A:
            v = k

        made.append(A)
    return x * sum(cls.v for cls in made), made[0] is made[1]


class _Told:
    told = []

    def __init_subclass__(cls):
        _Told.told.append(cls.__name__)


def told_of_subclasses(x):
    class A(_Told): ...

    return x + 1, list(_Told.told)


told_of_subclasses.any_graphs = True
