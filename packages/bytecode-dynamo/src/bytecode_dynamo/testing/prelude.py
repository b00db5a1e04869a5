# ruff: noqa: F401
# type: ignore
"""What every generated program begins with: classes, functions, generators and a module to call."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import types

import numpy as np
import torch

import bytecode_dynamo

COUNT = 0
SHARED = [1]


class Box:
    kind = "box"

    def __init__(self, v, log):
        self.v, self.log = v, log

    def add(self, k, *, by=1):
        self.v = self.v + k * by
        return self

    @property
    def twice(self):
        return self.v * 2

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind and kind.__name__))
        return kind is KeyError

    def __len__(self):
        return 2

    def __getitem__(self, k):
        return self.v + k


class Keeping(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def note(log, value):
    log.append(value)
    return value


def scaled(a, k=2, *rest, plus=0, **more):
    return a * k + len(rest) + plus + len(more)


def counting(n, log):
    for i in range(n):
        log.append(i)
        yield i
    return n


def echo(log):
    got = 0
    try:
        while True:
            got = yield got
            log.append(("got", got))
    except ValueError as error:
        yield str(error)
    finally:
        log.append("closed")


def chained(n, log):
    result = yield from counting(n, log)
    yield result * 10


@contextlib.contextmanager
def tagged(log, name):
    log.append(name)
    try:
        yield name
    finally:
        log.append(name * 2)


def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        note.calls += 1
        return function(*args, **kwargs)

    return inner


note.calls = 0


@logged
def doubled(a, /, *, plus=0):
    return a + a + plus


class Failure(ValueError):
    def __init__(self, code, text="failed"):
        super().__init__(text, code)
        self.code = code


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(order=True)
class Pair:
    a: int
    b: object = dataclasses.field(default=0, compare=False)

    def __post_init__(self):
        self.c = self.a + 1


Named = collections.namedtuple("Named", "first second", defaults=[7])


class Slotted:
    __slots__ = ("p", "q")

    def __init__(self, p):
        self.p = p


class Special(Box):
    made = 0

    def __init__(self, v, log, scale=2):
        super().__init__(v, log)
        self.scale = scale
        type(self).made += 1

    def add(self, k, *, by=1):
        super().add(k, by=by)
        self.log.append(("special", k))
        return self

    @classmethod
    def of(cls, v, log):
        return cls(v, log, scale=3)

    @staticmethod
    def half(k):
        return k // 2

    @property
    def level(self):
        return self.scale

    @level.setter
    def level(self, value):
        self.log.append("level")
        self.scale = value % 5

    def __call__(self, t):
        return t * self.scale

    def __eq__(self, other):
        return isinstance(other, Special) and other.scale == self.scale

    def __hash__(self):
        return hash(self.scale)

    def __lt__(self, other):
        return self.scale < other.scale

    def __iter__(self):
        yield self.scale
        yield from (1, 2)

    def __contains__(self, k):
        return k == self.scale

    def __add__(self, other):
        return self.scale + other if isinstance(other, int) else NotImplemented

    def __getattr__(self, name):
        if name.startswith("zz"):
            return len(name)
        raise AttributeError(name)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.ReLU()])
        self.weight = torch.nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, t, times=1):
        for layer in self.layers:
            t = layer(t) * self.weight.detach()
        self.count.add_(times)
        return t + self.count


NET = Net()


@functools.singledispatch
def kind_of(v):
    return 0


@kind_of.register
def _(v: int):
    return 1


@kind_of.register(str)
def _(v):
    return 2


@functools.lru_cache
def cached(k):
    return k * 2
