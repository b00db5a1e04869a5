"""Small programs for the conformance kit of capture, by area: functions of a tensor, a number and a
list, which they may change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

PROGRAMS: dict[str, list[str]] = {}
_scale = [2.0]


def _program(area: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.setdefault(area, []).append(function.__name__)
        return function

    return add


def arguments(call: int) -> list[Any]:
    """The arguments of a program's call: sizes, numbers and lengths differ between calls."""
    rows = (4, 4, 6, 3)[call % 4]
    x = torch.linspace(-1, 1, rows * 3).reshape(rows, 3)
    return [x, (2, 2, 3, -1)[call % 4], [1, 2, 3][: call % 3 + 1]]


@_program("tensors")
def arithmetic(x, n, items):
    return (x * n + 1).sin().sum(0), x.mean() - n


@_program("tensors")
def shapes(x, n, items):
    return x.reshape(-1, x.shape[0]).t() + torch.arange(x.shape[0])[:, None], x.numel()


@_program("tensors")
def factories(x, n, items):
    return torch.zeros(x.shape[1], dtype=x.dtype) + torch.full_like(x, n), torch.eye(3) @ x.T


@_program("tensors")
def subscripts(x, n, items):
    y = x.clone()
    y[:, 0] = n
    y[x > 0] += 1
    return y, y[..., -1:], x[[0, 1]]


@_program("tensors")
def random_numbers(x, n, items):
    return torch.rand(3) + torch.nn.functional.dropout(x, 0.5)


@_program("control flow")
def loops(x, n, items):
    for i, item in enumerate(items):
        if item == n:
            continue
        x = x + i
    else:
        x = x * 2
    while n > 0:
        x, n = x - 1, n - 1
    return x


@_program("control flow")
def branches_on_numbers(x, n, items):
    if n > 2:
        return x + n
    return x - n if x.shape[0] > 3 else x * n


@_program("control flow")
def match_statement(x, n, items):
    match items:
        case [a]:
            return x + a
        case [a, b]:
            return x + a * b
        case [a, *rest]:
            return x - len(rest)
    return x


@_program("control flow")
def comprehensions(x, n, items):
    return sum(x * i for i in items if i), {i: x + i for i in items}, [*map(x.add, items)]


@_program("functions")
def closures(x, n, items):
    total = 0

    def add(t, *, k=1):
        nonlocal total
        total += k
        return t * k + n

    return add(add(x), k=3), total


@_program("functions")
def partials_and_unpacking(x, n, items):
    def f(a, b=2, *rest, c, **more):
        return a * b + c + len(rest) + len(more)

    return functools.partial(f, c=n)(x, *items, d=1), f(**{"a": x, "c": 1})


@_program("functions")
def generators(x, n, items):
    def steps(count):
        got = 0
        for i in range(count):
            got = (yield x + i + got) or 0

    it = steps(3)
    return next(it), it.send(n), list(it)


@_program("functions")
def recursion(x, n, items):
    def power(t, k):
        return t if k <= 1 else t * power(t, k - 1)

    return power(x, n)


@_program("objects")
def containers(x, n, items):
    d = {"a": x, "b": [x + 1]}
    d.setdefault("c", {n}).add(3)
    d["b"].extend(items)
    first, *others = d["b"]
    return d, first.sum(), others, sorted(d), tuple(reversed(items))


@_program("objects")
def dataclass_instances(x, n, items):
    p = _Point(x, n)
    q = dataclasses.replace(p, k=5)
    return q.total, p == _Point(x, n), dataclasses.astuple(q)[1]


@_program("objects")
def classes(x, n, items):
    class Scaled:
        def __init__(self, k):
            self.k = k

        def __call__(self, t):
            return t * self.k

        @property
        def twice(self):
            return Scaled(self.k * 2)

    s = Scaled(n)
    s.k += 1
    return s(x), s.twice(x), isinstance(s, Scaled)


@_program("objects")
def modules(x, n, items):
    with torch.no_grad():
        _net.weight.copy_(torch.arange(9.0).reshape(3, 3))
    return _net(x), [name for name, _ in _net.named_parameters()]


@_program("effects")
def changed_arguments(x, n, items):
    x.add_(1)
    items.append(n)
    return items[-1] + x


@_program("effects")
def changed_globals(x, n, items):
    _scale[0] += 1
    result = x * _scale[0]
    _scale[0] = 2.0
    return result


@_program("effects")
def printing(x, n, items):
    y = x + n
    print("between", n, items)
    return y * 2


@_program("effects")
def item_of_a_tensor(x, n, items):
    total = (x > 0).sum().item()
    return x + total if total > n else x - total


@_program("effects")
def branch_on_data(x, n, items):
    y = x * 2
    if y.sum() > n:
        return y + 1
    return y - 1


@_program("exceptions")
def handled(x, n, items):
    try:
        y = items[5]
    except IndexError as error:
        y = len(str(error))
    finally:
        x = x + 1
    return x * y


@_program("exceptions")
def raised(x, n, items):
    y = x + 1
    if n < 3:
        raise ValueError(f"n is {n}")
    return y


@_program("exceptions")
def context_managers(x, n, items):
    @contextlib.contextmanager
    def doubling() -> Iterator[int]:
        items.append(0)
        try:
            yield 2
        finally:
            items.pop()

    with doubling() as k, torch.no_grad():
        y = x * k + len(items)
    return y, y.requires_grad


@_program("gradients")
def gradients(x, n, items):
    w = x.detach().clone().requires_grad_()
    loss = (w.sin() * n).sum()
    loss.backward()
    return loss.detach(), w.grad


@_program("gradients")
def gradient_modes(x, n, items):
    w = x.detach().requires_grad_()
    with torch.no_grad():
        a = w * 2
    with torch.enable_grad():
        b = w * 3
    return a.requires_grad, b.requires_grad, b.detach() + a


@dataclasses.dataclass
class _Point:
    v: torch.Tensor
    k: int

    @property
    def total(self) -> torch.Tensor:
        return self.v.sum() * self.k

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Point) and self.k == other.k


_net = torch.nn.Linear(3, 3, bias=False)
