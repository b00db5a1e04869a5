"""``is`` between arguments: the same object by two names, and equal objects."""

from __future__ import annotations

import functools
import types

import pytest
import torch
import torchstrata

MAKERS = {
    "function": lambda: lambda: 0,
    "generator": lambda: (k for k in [1]),
    "partial": lambda: functools.partial(max, 1),
    "slice": lambda: slice(1, 2),
    "tuple": lambda: (1, [2]),
    "size": lambda: torch.Size([2]),
    "range": lambda: range(3000),
    "method": lambda: types.SimpleNamespace().__repr__,
    "read-only mapping": lambda: types.MappingProxyType({}),
    "view": lambda: {1: 2}.keys(),
    "list": lambda: [1],
    "object": types.SimpleNamespace,
    "tensor": lambda: torch.ones(1),
}


def compared(one, other, x):
    return one is other, one is not other, x + 1


@pytest.mark.parametrize("name", MAKERS)
def test_identity(name):
    compiled, x = torchstrata.compile(compared), torch.ones(1)
    a, b = MAKERS[name](), MAKERS[name]()
    for one, other in ((a, b), (a, a), (b, b), (b, a), (a, b)):
        is_same, is_other, _ = compiled(one, other, x)
        assert (is_same, is_other) == (one is other, one is not other)


def test_an_iterator_across_a_break():
    def program(iterator, x):
        same = iter(iterator) is iterator
        return same, next(iterator), x + 1

    compiled = torchstrata.compile(program)
    assert compiled((k for k in [3, 5]), torch.ones(1))[:2] == (True, 3)
