"""Containers that are changed while a loop runs over them, without a handler: eager's exception."""

from __future__ import annotations

import collections

import bytecode_dynamo as bd
import pytest
import torch


def popped_items(x):
    d = {1: 2, 3: 4}
    for k, _ in d.items():
        d.pop(k)
    return d, x + 1


def grown_keys(x):
    d = {1: 2, 3: 4}
    for k in d:
        d[k, 5] = 1
    return d, x + 1


def moved(x):
    order = collections.OrderedDict(a=1, b=2)
    for _ in order:
        order.move_to_end("a")
    return order, x + 1


def moved_items(x):
    order = collections.OrderedDict(a=1, b=2)
    for _ in order.items():
        order.move_to_end("a")
    return order, x + 1


def grown_set(x):
    s = {1, 2, 3}
    for v in s:
        s.add(v + 10)
    return s, x + 1


@pytest.mark.parametrize(
    "program", [popped_items, grown_keys, moved, moved_items, grown_set], ids=lambda f: f.__name__
)
def test_exception(program):
    x = torch.ones(2)
    with pytest.raises(RuntimeError) as expected:
        program(x)
    with pytest.raises(RuntimeError, match=str(expected.value)):
        bd.optimize("eager")(program)(x)
