"""Enumerations, dataclasses, views, caches, threads, imports, special methods: what programs read
of the standard library.
"""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import gc
import math
import operator
import os
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from .changing import States, changed, check_state, items, rows_of, setting

STATES: States = {}
row, rows = rows_of(STATES)
SCALE = 2


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Data:
    a: int = 1
    b: list[int] = dataclasses.field(default_factory=lambda: [2])


class Reading:
    @property
    def scaled(self):
        return SCALE * 2

    @functools.cached_property
    def kept(self):
        return SCALE


class Getter:
    def __get__(self, owner, cls):
        return SCALE * 3


class Holder:
    got = Getter()


class Operand:
    def __init__(self):
        self.v = 2

    def __add__(self, other):
        return self.v

    def __eq__(self, other):
        return self.v == other

    __hash__ = None  # type: ignore[assignment]

    def __index__(self):
        return self.v

    def __float__(self):
        return float(self.v)

    def __format__(self, spec):
        return "a" * self.v

    def __contains__(self, key):
        return key == self.v

    def __call__(self, x):
        return x * self.v

    def __enter__(self):
        return self.v

    def __exit__(self, *error):
        return True

    def __iter__(self):
        return iter(range(self.v))

    def __reversed__(self):
        return iter([self.v])

    def __repr__(self):
        return "b" * self.v


class Key:
    v = 2

    def __hash__(self):
        return self.v

    def __eq__(self, other):
        return self.v == other


KEY = Key()
DATA, READING, HOLDER, OPERAND = Data(), Reading(), Holder(), Operand()
QUEUE, BYTES, NUMBERS, ARRAY = (
    collections.deque([1, 2, 3]),
    bytearray(b"ab"),
    np.ones(3, "f4"),
    array.array("i", [1, 2]),
)
PLAIN, CHAIN, ORDERED = (
    {"a": 1},
    collections.ChainMap({"a": 1}, {"b": 2}),
    collections.OrderedDict(a=1, b=2),
)
VIEW, KEYS = types.MappingProxyType(PLAIN), PLAIN.keys()
MEMBERS, LOCAL, VARIABLE, EVENT = (
    {1, 2},
    threading.local(),
    contextvars.ContextVar("VARIABLE", default=2),
    threading.Event(),
)
LOCAL.v = 2
FAKE: Any = types.ModuleType("guarded_fake")
FAKE.v = 2
sys.modules["guarded_fake"] = FAKE
HERE = sys.modules[__name__]


def function(x, a=1):
    return x * a


PARTIAL = functools.partial(function, a=2)


@functools.singledispatch
def dispatched(v):
    return 1


@functools.lru_cache
def cached(k):
    return SCALE * k


def imports(x):
    import guarded_fake as fake

    return x * fake.v


def imports_name(x):
    from math import e as number

    return x * number


def enters(x):
    with OPERAND as k:
        return x * k


class One:
    v = 1


class Two:
    v = 2


class Bound(One):
    pass


BOUND = Bound()


def on(obj: Any, program: Any, **new: Any):
    return lambda: (program, setting(obj, **new))


def item(container: Any, program: Any, key: Any, new: Any):
    old = container[key]
    return lambda: (
        program,
        changed(
            lambda: operator.setitem(container, key, new),
            lambda: operator.setitem(container, key, old),
        ),
    )


rows(
    bases=lambda: (
        lambda x: x * BOUND.v,
        changed(
            lambda: setattr(Bound, "__bases__", (Two,)), lambda: setattr(Bound, "__bases__", (One,))
        ),
    ),
    class_of_instance=lambda: (
        lambda x: x * BOUND.v,
        changed(
            lambda: setattr(BOUND, "__class__", Two), lambda: setattr(BOUND, "__class__", Bound)
        ),
    ),
    property_reads_global=on(HERE, lambda x: x * READING.scaled, SCALE=7),
    cached_property_set=lambda: (
        lambda x: x * READING.kept,
        changed(lambda: vars(READING).update(kept=9), lambda: None),
    ),
    descriptor_reads_global=on(HERE, lambda x: x * HOLDER.got, SCALE=7),
    descriptor_shadowed=lambda: (lambda x: x * HOLDER.got, items(vars(HOLDER), got=50)),
    descriptor_gets_set=on(Getter, lambda x: x * HOLDER.got, __set__=lambda *a: None),
    enum_attribute=on(Colour.RED, lambda x: x * getattr(Colour.RED, "zz", 1), zz=9),
    enum_value=on(Colour.RED, lambda x: x * Colour.RED.value, _value_=9),
    enum_method=on(Colour, lambda x: x * getattr(Colour, "k", 1), k=9),
    enum_members=lambda: (
        lambda x: x * len(list(Colour)),
        changed(lambda: Colour._member_names_.append("RED"), Colour._member_names_.pop),
    ),
    enum_by_value=lambda: (
        lambda x: x * Colour(1).value,
        items(Colour._value2member_map_, {1: Colour.BLUE}),
    ),
    dataclass_field=on(
        DATA,
        lambda x: [x * getattr(DATA, f.name) for f in dataclasses.fields(DATA) if f.name == "a"],
        a=9,
    ),
    dataclass_fields=lambda: (
        lambda x: len(dataclasses.fields(DATA)) * x,
        items(Data.__dataclass_fields__, zz=Data.__dataclass_fields__["a"]),
    ),
    dataclass_asdict=item(DATA.b, lambda x: x * dataclasses.asdict(DATA)["b"][0], 0, 9),
    set_swapped=lambda: (
        lambda x: sum(MEMBERS) * x,
        changed(
            lambda: (MEMBERS.discard(1), MEMBERS.add(6)),
            lambda: (MEMBERS.discard(6), MEMBERS.add(1)),
        ),
    ),
    ordered_moved=lambda: (
        lambda x: [x * v for v in ORDERED.values()],
        changed(lambda: ORDERED.move_to_end("a"), lambda: ORDERED.move_to_end("b")),
    ),
    deque_rotated=lambda: (
        lambda x: x * QUEUE[0],
        changed(lambda: QUEUE.rotate(1), lambda: QUEUE.rotate(-1)),
    ),
    bytearray_item=item(BYTES, lambda x: x * BYTES[0], 0, 5),
    array_item=item(ARRAY, lambda x: x * ARRAY[0], 0, 9),
    numpy_item=item(NUMBERS, lambda x: x * float(NUMBERS[0]), 0, 5),
    numpy_contents=item(NUMBERS, lambda x: x + torch.from_numpy(NUMBERS), 0, 5),
    mapping_proxy=lambda: (lambda x: x * VIEW["a"], items(PLAIN, a=9)),
    mapping_proxy_keys=lambda: (lambda x: [x + len(k) for k in VIEW], items(PLAIN, bb=9)),
    keys_view=lambda: (lambda x: x * len(KEYS), items(PLAIN, b=9)),
    chain_map=lambda: (lambda x: x * CHAIN["b"], items(CHAIN.maps[1], b=9)),
    thread_local=on(LOCAL, lambda x: x * LOCAL.v, v=9),
    context_variable=lambda: (
        lambda x: x * VARIABLE.get(),
        changed(lambda: VARIABLE.set(9), lambda: VARIABLE.set(2)),
    ),
    event=lambda: (lambda x: x + 1 if EVENT.is_set() else x, changed(EVENT.set, EVENT.clear)),
    lru_cache=lambda: (
        lambda x: x * cached(3),
        changed(lambda: (setattr(HERE, "SCALE", 7), cached.cache_clear()), _restore),
    ),
    function_attribute=on(function, lambda x: x * getattr(function, "attr", 2), attr=9),
    function_name=on(function, lambda x: x * len(function.__name__), __name__="longer name"),
    partial_keywords=lambda: (lambda x: PARTIAL(x), items(PARTIAL.keywords, a=9)),
    partial_state=lambda: (
        lambda x: PARTIAL(x),
        changed(lambda: PARTIAL.__setstate__((function, (), {"a": 8}, {})), lambda: None),
    ),
    singledispatch=lambda: (
        lambda x: x * dispatched(3),
        changed(lambda: dispatched.register(int, lambda v: 9), lambda: None),
    ),
    working_directory=lambda: (
        lambda x: x * len(os.getcwd()),
        changed(lambda: os.chdir("/"), functools.partial(os.chdir, os.getcwd())),
    ),
    arguments=lambda: (
        lambda x: x * len(sys.argv),
        changed(lambda: sys.argv.append("z"), sys.argv.pop),
    ),
    modules=lambda: (
        lambda x: x + 1 if "zork" in sys.modules else x,
        items(sys.modules, zork=FAKE),
    ),
    module_replaced=lambda: (imports, items(sys.modules, guarded_fake=types.SimpleNamespace(v=9))),
    module_getattr=on(FAKE, lambda x: x * getattr(FAKE, "w", 1), __getattr__=lambda name: 9),
    name_imported=on(math, imports_name, e=9),
    constant_of_math=on(math, lambda x: x * math.tau, tau=9),
    constant_of_numpy=on(np, lambda x: x * np.pi, pi=9),
    function_of_math=on(math, lambda x: x * math.sqrt(4), sqrt=lambda v: 50),
    function_of_operator=on(operator, lambda x: operator.add(x, 1), add=operator.sub),
    dtype_of_torch=on(torch, lambda x: x.to(torch.float64), float64=torch.int32),
    availability=on(torch.cuda, lambda x: x + torch.cuda.is_available(), is_available=lambda: True),
    weak_dictionary=lambda: dying(),
    key_by_hash=on(KEY, lambda x: x * {2: 1, 5: 3}.get(KEY, 7), v=5),
)
for name, program, new in (
    ("__add__", lambda x: OPERAND + 3, lambda s, o: 50),
    ("__call__", lambda x: OPERAND(x), lambda s, x: x - 50),
    ("__eq__", lambda x: x + (OPERAND == 2), lambda s, o: False),
    ("__iter__", lambda x: [x * k for k in OPERAND], lambda s: iter([50])),
    ("__enter__", enters, lambda s: 50),
    ("__index__", lambda x: x[OPERAND], lambda s: 0),
    ("__float__", lambda x: x * float(OPERAND), lambda s: 50.0),
    ("__format__", lambda x: x * len(f"{OPERAND}"), lambda s, f: "long"),
    ("__contains__", lambda x: x + (2 in OPERAND), lambda s, k: False),
    ("__reversed__", lambda x: [x * k for k in reversed(OPERAND)], lambda s: iter([50])),
    ("__repr__", lambda x: x * len(repr(OPERAND)), lambda s: "long"),
):
    STATES[f"method {name}"] = on(Operand, program, **{name: new})
    STATES[f"state of {name}"] = on(OPERAND, program, v=1)


def _restore() -> None:
    setattr(HERE, "SCALE", 2)  # noqa: B010
    cached.cache_clear()


def dying():
    kept = [Holder()]
    kept[0].v = 3  # type: ignore[attr-defined]
    found: Any = weakref.WeakValueDictionary(a=kept[0])
    return (lambda x: x * (found["a"].v if "a" in found else 9)), changed(
        lambda: (kept.clear(), gc.collect()), lambda: None
    )


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)
