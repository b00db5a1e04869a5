"""Methods written in C, bound to objects whose class has another method of that name."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
from bytecode_dynamo.counters import counters


class Frozen:
    def __setattr__(self, name, value):
        raise TypeError(name)

    def __getattribute__(self, name):
        return 7 if name == "odd" else object.__getattribute__(self, name)

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class Strict(dict):
    def __setitem__(self, key, value):
        raise TypeError(key)

    def __len__(self):
        return 77

    def get(self, key):
        return 88


FROZEN, STRICT = Frozen(), Strict(a=1)
SET, EQUAL = object.__setattr__.__get__(FROZEN), object.__eq__.__get__(FROZEN)
LOAD = object.__getattribute__.__get__(FROZEN)
STORE, LENGTH = dict.__setitem__.__get__(STRICT), dict.__len__.__get__(STRICT)
ITEMS = [1, 2, 2, 2]
FIND = ITEMS.index
GET = dict.get.__get__(STRICT)


def made_in_the_call(x):
    frozen = Frozen()
    store = object.__setattr__.__get__(frozen)
    store("value", x)
    items = [1]
    append = list.append.__get__(items)
    append(2)
    return frozen.value + len(items), int.__add__.__get__(3)(4)


def existing_setter(x):
    try:
        SET("value", x)
    except TypeError:
        return x - 1
    return FROZEN.value + 1


def existing_comparison(x):
    return x, EQUAL(3) is NotImplemented, FROZEN == 3


def existing_getter(x):
    try:
        return LOAD("odd") + x
    except AttributeError:
        return x


def existing_dict(x):
    STORE("k", 2)
    return x + STRICT["k"], LENGTH(), len(STRICT), GET("a"), STRICT.get("a")


PROGRAMS = [
    made_in_the_call, existing_setter, existing_comparison, existing_getter, existing_dict,
]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_bound_descriptor_is_what_is_called(f, alike):
    before = counters["graph_breaks"]
    compiled = bd.optimize("eager")(f)
    x = torch.ones(2)
    assert alike(compiled(x), f(x))
    assert alike(compiled(x + 1), f(x + 1))
    assert counters["graph_breaks"] == before


def test_other_descriptor_of_the_same_object(monkeypatch):
    compiled = bd.optimize("eager")(existing_comparison)
    x = torch.ones(2)
    assert compiled(x)[1]
    monkeypatch.setitem(globals(), "EQUAL", object.__ne__.__get__(FROZEN))
    assert compiled(x)[1] == existing_comparison(x)[1]


def test_other_method_of_the_same_object(monkeypatch):
    def f(x):
        return x + FIND(2)

    compiled, x = bd.optimize("eager")(f), torch.ones(2)
    assert compiled(x).tolist() == f(x).tolist()
    monkeypatch.setitem(globals(), "FIND", ITEMS.count)
    assert compiled(x).tolist() == f(x).tolist()
