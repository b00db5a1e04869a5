"""``functools.lru_cache`` and ``functools.cache``: what a cache holds is what a call gives, and it
counts as in eager mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torchstrata

SCALE = [2]
LOG: list[int] = []


def mutated(cached: Callable[..., Any]) -> Callable[..., Any]:
    table = cached(lambda n: torch.zeros(n))

    def f(x: torch.Tensor) -> torch.Tensor:
        t = table(3)
        t += 1
        return x + t

    return f


def same_object(cached: Callable[..., Any]) -> Callable[..., Any]:
    table = cached(lambda n: torch.arange(n))
    return lambda x: (table(3) is table(3), table(3) + x)


def drawn(cached: Callable[..., Any]) -> Callable[..., Any]:
    noise = cached(lambda n: torch.rand(n))
    return lambda x: torch.rand(3) + noise(3) + x + torch.rand(3)


def drawn_first(cached: Callable[..., Any]) -> Callable[..., Any]:
    noise = cached(lambda n: torch.rand(n))
    return lambda x: noise(3) + torch.rand(3) + x


def logged(cached: Callable[..., Any]) -> Callable[..., Any]:
    def body(n: int) -> int:
        LOG.append(n)
        return n * SCALE[0]

    double = cached(body)
    return lambda x: (x * double(3), list(LOG))


def logged_later(cached: Callable[..., Any]) -> Callable[..., Any]:
    def body(n: int) -> int:
        LOG.append(n)
        return len(LOG)

    count = cached(body)

    def f(x: torch.Tensor) -> Any:
        LOG.append(7)
        y = x * count(3)
        LOG.append(8)
        return y, list(LOG)

    return f


def stale(cached: Callable[..., Any]) -> Callable[..., Any]:
    scaled = cached(lambda n: n * SCALE[0])
    SCALE[0] = 5
    scaled(3)
    SCALE[0] = 2
    return lambda x: x * scaled(3)


def listed(cached: Callable[..., Any]) -> Callable[..., Any]:
    held = cached(lambda n: [n])

    def f(x: torch.Tensor) -> Any:
        held(3).append(1)
        return x + len(held(3)), held(3)

    return f


def keywords(cached: Callable[..., Any]) -> Callable[..., Any]:
    table = cached(lambda n, *, k=1: n + k)
    return lambda x: x * table(3, k=2) + table(3) + table(n=3)


def counted(cached: Callable[..., Any]) -> Callable[..., Any]:
    table = cached(lambda n: n + 1)

    def f(x: torch.Tensor) -> Any:
        y = x * table(1) + table(2) + table(1)
        return y, tuple(table.cache_info())

    return f


def of_tensors(cached: Callable[..., Any]) -> Callable[..., Any]:
    double = cached(lambda t: t * 2)
    return lambda x: double(KEY) + double(KEY) + x


def methods(cached: Callable[..., Any]) -> Callable[..., Any]:
    class Holder:
        def __init__(self) -> None:
            self.made = 0

        @cached
        def table(self, n: int) -> torch.Tensor:
            self.made += 1
            return torch.full((n,), self.made)

    holder = Holder()
    return lambda x: (holder.table(3) + x, holder.made)


def refused(cached: Callable[..., Any]) -> Callable[..., Any]:
    def body(n: int) -> int:
        LOG.append(n)
        raise ValueError(n)

    failing = cached(body)

    def f(x: torch.Tensor) -> Any:
        try:
            failing(3)
        except ValueError:
            return x + len(LOG)
        return x

    return f


def reads_what_was_written(cached: Callable[..., Any]) -> Callable[..., Any]:
    double = cached(lambda n: n * SCALE[0])

    def f(x: torch.Tensor) -> torch.Tensor:
        SCALE[0] = SCALE[0] + 1
        return x * double(3)

    return f


def reads_an_attribute(cached: Callable[..., Any]) -> Callable[..., Any]:
    class Holder:
        scale = 2

    @cached
    def double(holder: Holder, n: int) -> int:
        return n * sum(vars(holder).values()) * holder.scale

    holder = Holder()

    def f(x: torch.Tensor) -> torch.Tensor:
        holder.scale += 1
        return x * double(holder, 3)

    return f


def reads_a_variable(cached: Callable[..., Any]) -> Callable[..., Any]:
    count = 0
    double = cached(lambda n: n * count)

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x * double(3)

    return f


KEY = torch.ones(3)
PROGRAMS = [
    mutated, same_object, drawn, drawn_first, logged, logged_later, stale, listed, keywords,
    counted, of_tensors, methods, reads_what_was_written, reads_an_attribute, reads_a_variable,
    refused,
]  # fmt: skip
CACHES = {
    "lru_cache": functools.lru_cache,
    "two entries": functools.lru_cache(2),
    "typed": functools.lru_cache(8, typed=True),
    "cache": functools.cache,
    "no entries": functools.lru_cache(0),
}


def _runs(
    make: Callable[..., Any], cached: Callable[..., Any], compile_: Callable[..., Any]
) -> list[Any]:
    made: list[Any] = []

    def remembered(function: Callable[..., Any]) -> Any:
        made.append(cached(function))
        return made[-1]

    LOG.clear(), SCALE.__setitem__(0, 2)
    torch.manual_seed(0)
    f = compile_(make(remembered))
    results = []
    for _ in range(5):
        results += [f(torch.arange(3.0)), tuple(made[0].cache_info()), list(LOG)]
    made[0].cache_clear()
    return [*results, f(torch.arange(3.0)), tuple(made[0].cache_info()), list(LOG)]


CASES = [(make, cache, "eager") for make in PROGRAMS for cache in CACHES]
# other numbers
CASES += [
    (make, "lru_cache", "torchstrata") for make in PROGRAMS if make not in (drawn, drawn_first)
]


@pytest.mark.parametrize(
    ("make", "cache", "backend"), CASES, ids=lambda part: getattr(part, "__name__", part)
)
def test_results_and_statistics(make: Callable[..., Any], cache: str, backend: str) -> None:
    torchstrata.reset()
    compile_ = functools.partial(torchstrata.compile, backend=backend)
    expected, found = (_runs(make, CACHES[cache], call) for call in (lambda f: f, compile_))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_table_is_a_part_of_one_graph() -> None:
    """What depends on its arguments only can be computed while capturing, in the middle of a graph
    as well.
    """
    table = functools.lru_cache(lambda n: torch.tril(torch.ones(n, n)))
    f = torchstrata.compile(lambda x: x.sin() @ table(3), fullgraph=True)
    for _ in range(3):
        assert torch.equal(f(torch.ones(3, 3)), torch.ones(3, 3).sin() @ table(3))
    assert table.cache_info().misses == 1


def test_a_frame_that_has_written_other_things_is_one_graph() -> None:
    """As the first call of einops does, which notes that tensors are torch's."""
    known: dict[type, str] = {}
    table = functools.lru_cache(lambda n: torch.tril(torch.ones(n, n)))

    def f(x: torch.Tensor) -> torch.Tensor:
        known[type(x)] = "torch"
        return x.sin() @ table(3)

    compiled = torchstrata.compile(f, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3, 3)), f(torch.ones(3, 3)))
    assert table.cache_info().misses == 1
    assert known == {torch.Tensor: "torch"}


def test_devices_are_keys_by_value() -> None:
    """As in the positions of vit_pytorch's NaViT."""
    grid = functools.lru_cache(lambda n, device: torch.arange(n, device=device))
    f = torchstrata.compile(
        lambda x: x + grid(3, x.device) + grid(3, torch.device("cpu")), fullgraph=True
    )
    for _ in range(2):
        assert torch.equal(f(torch.ones(3)), torch.ones(3) + 2 * torch.arange(3))
    assert grid.cache_info().misses == 1


def test_one_graph_or_an_error() -> None:
    noise = functools.lru_cache(lambda n: torch.rand(n))
    f = torchstrata.compile(lambda x: x.sin() + noise(3), fullgraph=True)
    with pytest.raises(bytecode_dynamo.Unsupported, match="BD002"):
        f(torch.ones(3))
    held = noise(3)
    assert torch.equal(f(torch.ones(3)), torch.ones(3).sin() + held)


FACTOR = 2


def scaled(n: int) -> int:
    return n * FACTOR


def squared(n: int) -> int:
    return n * n


def table(n: int) -> torch.Tensor:
    return torch.ones(n)


@pytest.mark.parametrize("function", [scaled, squared, table])
@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_that_change(function, dynamic, monkeypatch):
    """A body was evaluated for any number: with globals of today, counted nowhere, and with a new
    tensor for each call.
    """

    def run(compiler):
        cached = functools.lru_cache(maxsize=2)(function)
        monkeypatch.setitem(globals(), "FACTOR", 2)

        def f(x, i, j):
            found = cached(j)
            if isinstance(found, torch.Tensor):
                found.add_(1)
            return x * cached(i), found

        call, seen = compiler(f), []
        for i, j in ((2, 3), (2, 2), (4, 3), (3, 5), (3, 4)):
            results = call(torch.ones(1), i, j)
            seen.append(
                (
                    [r.tolist() if isinstance(r, torch.Tensor) else r for r in results],
                    cached.cache_info(),
                )
            )
            monkeypatch.setitem(globals(), "FACTOR", i + j)
        return seen

    compiled = run(functools.partial(torchstrata.compile, dynamic=dynamic, backend="eager"))
    assert compiled == run(lambda f: f)


@pytest.mark.parametrize("dynamic", [None, True])
def test_contents_of_an_argument_are_not_in_the_key(dynamic):
    """The key of a cache has an object by its identity: the result stays what it was when its
    contents change.
    """

    class Scale:
        factor = 2

    def run(compiler):
        cached, scale = functools.cache(lambda scale, sizes: scale.factor * sizes[0]), Scale()
        call, seen = compiler(lambda x, n: x * cached(scale, (n, 1))), []
        for n, scale.factor in ((2, 2), (3, 2), (4, 2), (5, 2), (3, 7), (2, 9)):
            seen.append((call(torch.ones(1), n).item(), cached.cache_info()))
        return seen

    assert run(functools.partial(torchstrata.compile, dynamic=dynamic, backend="eager")) == run(
        lambda f: f
    )
