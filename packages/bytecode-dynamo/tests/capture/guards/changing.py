"""What the tables of guards share: programs under a change of state, ways to change it, and sample
classes.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import bytecode_dynamo as bd
import torch

X = torch.tensor([1.0, -2.0, 3.0])
M = torch.arange(12.0).reshape(3, 4)
States = dict[str, Callable[[], tuple[Callable[[Any], Any], Any]]]
"""Each row gives a program of ``X`` and a context manager that changes what the program reads."""


def outcome(f: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives; an exception as its type and text."""
    try:
        return f(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)


def check_state(
    program: Callable[[Any], Any], change: Any, alike: Callable[[Any, Any], bool]
) -> None:
    """Compiled, run, state changed, run, state restored, run: each result is eager's."""
    bd.reset()
    captured = bd.optimize("eager")(program)

    def compare(when: str) -> None:
        random = torch.get_rng_state()
        expected = outcome(program, X)
        torch.set_rng_state(random)
        assert alike(expected, outcome(captured, X)), when

    compare("first")
    compare("again")
    with change:
        compare("changed")
        compare("changed, again")
    compare("restored")


@contextlib.contextmanager
def changed(change: Callable[[], Any], restore: Callable[[], Any]):
    change()
    try:
        yield
    finally:
        restore()


ABSENT = object()


@contextlib.contextmanager
def setting(owner: Any, **new: Any):
    """Attributes set inside; the old ones restored after, or deleted where the object itself had
    none.
    """
    old = {
        name: vars(owner).get(name, ABSENT) if hasattr(owner, "__dict__") else ABSENT
        for name in new
    }
    seen = {name: getattr(owner, name, ABSENT) for name in new}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in new:
            if old[name] is ABSENT and seen[name] is not getattr(owner, name):
                with contextlib.suppress(AttributeError, TypeError):
                    delattr(owner, name)
            restored = seen[name] if old[name] is ABSENT else old[name]
            if restored is not ABSENT and getattr(owner, name, ABSENT) is not seen[name]:
                setattr(owner, name, restored)


def items(d: Any, new: Any = (), **more: Any) -> Any:
    return patch.dict(d, new, clear=more.pop("clear", False), **more)


class Named(NamedTuple):
    a: int
    b: float


@dataclasses.dataclass
class Data:
    a: int
    b: Any = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Int(int):
    pass


class List(list):
    pass


class Sub(torch.Tensor):
    pass


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) * 2


class Sized:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class Truth:
    def __init__(self, v):
        self.v = v

    def __bool__(self):
        return self.v


class Meta(type):
    def __instancecheck__(cls, other):
        return getattr(other, "n", 0) > 2


class Checked(metaclass=Meta):
    pass


class Hooked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "marker") or NotImplemented


def box(**fields: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**fields)


def counted(n):
    yield from range(n)


def started(n):
    it = counted(n)
    next(it)
    return it


def with_grad(t, grad=False):
    t = t.clone().requires_grad_()
    if grad:
        t.grad = torch.ones_like(t)
    return t


def rows_of(states: States) -> tuple[Callable[..., Any], Callable[..., None]]:
    """A decorator that adds a row, and a function that adds rows by name."""

    def row(f: Any) -> Any:
        states[f.__name__] = f
        return f

    return row, lambda **made: states.update(made)
