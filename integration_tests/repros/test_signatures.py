"""What ``inspect`` and readers of attributes see of compiled functions, modules, and their classes:
the original.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import typing
from typing import Any

import pytest
import torch
import torchstrata

NAMES = (
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__annotations__",
    "__defaults__",
    "__kwdefaults__",
    "extra",
)


def plain(a: torch.Tensor, b: int = 3, *c: int, d: str = "x", **e: Any) -> torch.Tensor:
    """Multiplies."""
    return a * b


plain.extra = 5  # type: ignore[attr-defined]


@functools.wraps(plain)
def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
    return plain(*args, **kwargs)


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x


def generator(x: torch.Tensor) -> typing.Iterator[torch.Tensor]:
    yield x


class Model(torch.nn.Module):
    """Scales."""

    def forward(self, x: torch.Tensor, k: int = 3, *, flag: bool = True) -> torch.Tensor:
        """Scale ``x``."""
        return x * k if flag else x


class Called:
    """Scales."""

    def __call__(self, x: torch.Tensor, k: int = 2) -> torch.Tensor:
        """Scale ``x``."""
        return x * k


def _facts(function: Any) -> tuple[Any, ...]:
    return (
        [getattr(function, name, None) for name in NAMES], inspect.signature(function),
        inspect.getdoc(function),
        typing.get_type_hints(function), inspect.iscoroutinefunction(function),
        inspect.isgeneratorfunction(function),
        inspect.getsource(function),
    )  # fmt: skip


@pytest.mark.parametrize(
    "function", [plain, wrapper, coroutine, generator], ids=lambda function: function.__name__
)
def test_functions(function: Any) -> None:
    compiled = torchstrata.compile(function)
    assert _facts(compiled) == _facts(function)
    assert inspect.getfullargspec(compiled) == inspect.getfullargspec(function)
    assert compiled.__wrapped__ is function and compiled.__code__ is function.__code__


def test_defaults_are_those_of_now() -> None:
    def scaled(x: torch.Tensor, k: int = 3) -> torch.Tensor:
        return x * k

    compiled = torchstrata.compile(scaled)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    scaled.__defaults__ = (5,)
    assert compiled.__defaults__ == (5,) and torch.equal(
        compiled(torch.ones(2)), torch.full((2,), 5.0)
    )


def test_modules_and_their_classes() -> None:
    model = Model()
    compiled = torchstrata.compile(model)
    assert _facts(compiled.forward) == _facts(model.forward)
    assert _facts(type(compiled).forward) == _facts(Model.forward)
    assert type(compiled).forward is Model.forward
    for look in (inspect.signature, inspect.getdoc, inspect.getsource):
        assert look(type(compiled)) == look(Model)
    assert inspect.signature(compiled) == inspect.signature(model)
    assert compiled.__wrapped__ is model and type(compiled).__wrapped__ is Model
    x = torch.ones(2)
    assert torch.equal(compiled(x, 4), x * 4) and torch.equal(compiled(x, flag=False), x)
    assert torch.equal(compiled(x), x * 3) and torch.equal(compiled.forward(x, k=2), x * 2)
    for made in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(made).__wrapped__ is Model and inspect.signature(made) == inspect.signature(
            model
        )


def test_bound_methods_and_objects() -> None:
    called = Called()
    for function in (called.__call__, called):
        assert inspect.signature(torchstrata.compile(function)) == inspect.signature(function)
    assert torchstrata.compile(called.__call__).__doc__ == "Scale ``x``."


def test_functions_written_in_c() -> None:
    compiled = torchstrata.compile(torch.sin)
    assert (
        compiled.__name__ == "sin"
        and compiled.__doc__ == torch.sin.__doc__
        and compiled.__annotations__ == {}
    )
    assert not hasattr(compiled, "missing")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())
