"""``fullgraph=True``: one graph, or an error that names the line; nothing runs in eager mode
without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torchstrata
from torch.utils._python_dispatch import TorchDispatchMode

Unsupported = bytecode_dynamo.Unsupported


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2


async def asynchronous_generator(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield x * 2


class Called:
    def __call__(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x * 2


class Yields(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x * 2


class Awaited(torch.nn.Module):
    async def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


SUSPENDED: dict[str, Any] = {
    "coroutine": coroutine,
    "generator": generator,
    "asynchronous generator": asynchronous_generator,
    "partial": functools.partial(generator),
    "context manager": contextlib.contextmanager(generator),
    "without gradients": torch.no_grad()(generator),
    "object": Called(),
    "yielding module": Yields(),
    "awaited module": Awaited(),
    "expression": lambda x: (k * x for k in range(3)),
    "map": lambda x: map(lambda k: k * x, range(3)),
    "filter": lambda x: filter(lambda t: t.sum() > 0, [x]),
    "zip of an expression": lambda x: zip((k * x for k in range(3)), [1]),
}


@pytest.mark.parametrize("name", SUSPENDED)
@pytest.mark.parametrize(
    "compile_", [torchstrata.compile, lambda f, **kw: bytecode_dynamo.optimize("eager", **kw)(f)]
)
def test_what_would_run_later_is_an_error(name: str, compile_: Callable[..., Any]) -> None:
    with pytest.raises(Unsupported, match="BD013") as raised:
        compile_(SUSPENDED[name], fullgraph=True)(torch.ones(3))
    assert __file__ in str(raised.value) and raised.value.id == "BD013"


def test_instances_of_a_class_whose_call_is_a_generator() -> None:
    class Calls(Called):
        pass

    with pytest.raises(Unsupported, match="BD013"):
        torchstrata.compile(Calls, fullgraph=True)()(torch.ones(3))


def test_without_fullgraph_they_run() -> None:
    x = torch.ones(3)
    assert torch.equal(asyncio.run(torchstrata.compile(coroutine)(x)), x * 2)
    assert torch.equal(next(torchstrata.compile(generator)(x)), x * 2)
    assert torch.equal(next(torchstrata.compile(Yields())(x)), x * 2)
    assert torch.equal(next(torchstrata.compile(SUSPENDED["map"])(x)), x * 0)


def test_what_is_consumed_is_one_graph() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return sum(map(lambda t: t * 2, generator(x)))

    assert torch.equal(torchstrata.compile(total, fullgraph=True)(torch.ones(3)), torch.ones(3) * 4)


def test_disabled_functions() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for recursive in (True, False):
        disabled = bytecode_dynamo.disable(plain, recursive=recursive)
        with pytest.raises(Unsupported, match="BD010"):
            torchstrata.compile(disabled, fullgraph=True)(torch.ones(3))
        assert torch.equal(torchstrata.compile(disabled)(torch.ones(3)), torch.ones(3) * 2)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_mode(call: Callable[..., Any], x: torch.Tensor) -> Any:
    with Passing():
        return call(x)


AROUND: dict[str, Callable[..., Any]] = {
    "mode": in_mode,
    "vmap": lambda call, x: torch.vmap(call)(x),
    "grad": lambda call, x: torch.func.grad(lambda x: call(x).sum())(x),
}


@pytest.mark.parametrize("name", AROUND)
def test_inside_of_what_graphs_hide_from(name: str) -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x, expected = torch.ones(3), AROUND[name](plain, torch.ones(3))
    assert torch.equal(AROUND[name](torchstrata.compile(plain), x), expected)
    with pytest.raises(Unsupported, match="is called inside of"):
        AROUND[name](torchstrata.compile(plain, fullgraph=True), x)


def test_inside_of_a_handler_of_operators() -> None:
    compiled = torchstrata.compile(lambda x: x * 2, fullgraph=True)

    class Handled(torch.Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return compiled(torch.ones(3))

    with pytest.raises(Unsupported, match="__torch_dispatch__"):
        torch.ones(3).as_subclass(Handled).sin()


def test_tracers_make_the_call_a_part_of_their_graph() -> None:
    compiled = torchstrata.compile(lambda x: x * 2, fullgraph=True)
    traced = torch.jit.trace(compiled, (torch.ones(3),))
    assert torch.equal(traced(torch.full((3,), 2.0)), torch.full((3,), 4.0))
