"""Attributes, classes, descriptors, special methods: changed after the compilation."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .changing import (
    Colour,
    Data,
    List,
    Meta,
    Sized,
    States,
    X,
    box,
    changed,
    check_state,
    rows_of,
    setting,
)

STATES: States = {}
row, rows = rows_of(STATES)


class Base:
    k = 3

    def m(self, x):
        return x * self.k

    @property
    def p(self):
        return self.k + 1

    @staticmethod
    def s(x):
        return x + 1

    @classmethod
    def c(cls, x):
        return x * cls.k

    @functools.cached_property
    def cached(self):
        return 10

    def __call__(self, x):
        return x - 1


class Derived(Base):
    def m(self, x):
        return super().m(x) + 1


class Other(Base):
    k = 9

    def m(self, x):
        return x - 5


def raising(self, x):
    raise ValueError(self.k)


def attempt(o, x):
    try:
        return o.m(x)
    except ValueError as error:
        return x, error.args


def between():
    parent = type("Parent", (Base,), {})

    class Child(parent):
        def m(self, x):
            return super().m(x) * 2

    return Child().m, setting(parent, m=lambda self, x: x + 30)


class MetaAttribute(type):
    kind = 3


class Slotted:
    __slots__ = ("a", "b")


class GetAttr:
    def __getattr__(self, name):
        return len(name)


class Descriptor:
    def __init__(self, n):
        self.n = n

    def __get__(self, obj, owner=None):
        return self.n


class Described:
    d = Descriptor(2)


def of(obj: Any, program: Callable[[Any, Any], Any], change: Callable[[Any], Any]):
    return lambda: (lambda o: ((lambda x: program(o, x)), change(o)))(obj())


def klass(base: type) -> type:
    """A fresh copy of a class, so that patches of it stay here."""
    return type(
        base.__name__,
        base.__bases__,
        {k: v for k, v in vars(base).items() if k not in ("__dict__", "__weakref__")},
    )


def on_class(**new: Any) -> Callable[[Any], Any]:
    return lambda o: setting(type(o), **new)


def on_instance(**new: Any) -> Callable[[Any], Any]:
    return lambda o: setting(o, **new)


rows(
    class_attribute=of(lambda: klass(Base)(), lambda o, x: x * o.k, on_class(k=7)),
    class_attribute_shadowed=of(Base, lambda o, x: x * o.k, on_instance(k=7)),
    class_attribute_of_base=of(Derived, lambda o, x: x * o.k, lambda o: setting(Base, k=7)),
    class_attribute_read_of_class=of(
        lambda: klass(Base), lambda c, x: x * c.k, lambda c: setting(c, k=7)
    ),
    instance_attribute=of(lambda: box(a=1), lambda o, x: x * o.a, on_instance(a=X)),
    instance_attribute_added=of(
        lambda: box(), lambda o, x: x + 1 if hasattr(o, "a") else x, on_instance(a=2)
    ),
    instance_attribute_default=of(
        lambda: box(), lambda o, x: x * getattr(o, "a", 3), on_instance(a=2)
    ),
    instance_method=of(Base, lambda o, x: o.m(x), on_instance(m=lambda x: x - 3)),
    class_method_replaced=of(
        lambda: klass(Base)(), lambda o, x: o.m(x), on_class(m=lambda self, x: x - 3)
    ),
    super_method_replaced=of(
        Derived, lambda o, x: o.m(x), lambda o: setting(Base, m=lambda self, x: x - 3)
    ),
    super_method_added_between=lambda: between(),
    setattr_added=of(
        lambda: klass(Base)(),
        lambda o, x: (setattr(o, "q", 1), x + o.q)[1],
        on_class(__setattr__=lambda o, n, v: vars(o).update(q=9)),
    ),
    exception_class=of(lambda: klass(Base)(), lambda o, x: attempt(o, x), on_class(m=raising)),
    property_raises=of(
        lambda: klass(Base)(),
        lambda o, x: x + getattr(o, "p", 3),
        on_class(p=property(lambda o: o.nothing)),
    ),
    metaclass_attribute_shadowed=of(
        lambda: MetaAttribute("C", (), {}), lambda c, x: x * c.kind, lambda c: setting(c, kind=8)
    ),
    metaclass_attribute=of(
        lambda: MetaAttribute("C", (), {}),
        lambda c, x: x * c.kind,
        lambda c: setting(MetaAttribute, kind=8),
    ),
    function_name=of(
        lambda: klass(Base).m,
        lambda f, x: x * len(f.__name__),
        lambda f: setting(f, __name__="abcdef"),
    ),
    class_assigned=of(Base, lambda o, x: o.m(x), lambda o: setting(o, __class__=Other)),
    class_assigned_derived=of(Base, lambda o, x: o.m(x), lambda o: setting(o, __class__=Derived)),
    bases_assigned=of(Derived, lambda o, x: o.m(x), lambda o: setting(Derived, __bases__=(Other,))),
    property_replaced=of(
        lambda: klass(Base)(), lambda o, x: x * o.p, on_class(p=property(lambda self: 50))
    ),
    property_to_value=of(lambda: klass(Base)(), lambda o, x: x * o.p, on_class(p=5)),
    property_reads=of(Base, lambda o, x: x * o.p, on_instance(k=5)),
    static_method=of(
        lambda: klass(Base)(), lambda o, x: o.s(x), on_class(s=staticmethod(lambda x: x * 6))
    ),
    class_method=of(lambda: klass(Base)(), lambda o, x: o.c(x), on_class(k=11)),
    cached_property=of(Base, lambda o, x: x * o.cached, on_instance(cached=3)),
    call_replaced=of(
        lambda: klass(Base)(), lambda o, x: o(x), on_class(__call__=lambda self, x: x * 8)
    ),
    call_on_instance=of(
        lambda: klass(Base)(), lambda o, x: o(x), on_instance(__call__=lambda x: x * 8)
    ),
    getattr_replaced=of(
        lambda: klass(GetAttr)(), lambda o, x: x * o.abc, on_class(__getattr__=lambda self, n: 20)
    ),
    getattr_shadowed=of(GetAttr, lambda o, x: x * o.abc, on_instance(abc=20)),
    getattr_added=of(
        lambda: klass(Base)(),
        lambda o, x: x * getattr(o, "zz", 1),
        on_class(__getattr__=lambda self, n: 20),
    ),
    getattribute_added=of(
        lambda: klass(Base)(), lambda o, x: x * o.k, on_class(__getattribute__=lambda self, n: 20)
    ),
    descriptor_state=of(
        Described, lambda o, x: x * o.d, lambda o: setting(vars(Described)["d"], n=8)
    ),
    descriptor_replaced=of(
        lambda: klass(Described)(), lambda o, x: x * o.d, on_class(d=Descriptor(9))
    ),
    descriptor_get_replaced=of(
        Described, lambda o, x: x * o.d, lambda o: setting(Descriptor, __get__=lambda *a: 70)
    ),
    len_of_class=of(
        lambda: klass(Sized)(2), lambda o, x: x * len(o), on_class(__len__=lambda self: 9)
    ),
    bool_added=of(
        lambda: klass(Base)(), lambda o, x: x + 1 if o else x, on_class(__bool__=lambda self: False)
    ),
    len_added=of(
        lambda: klass(Base)(), lambda o, x: x + 1 if o else x, on_class(__len__=lambda self: 0)
    ),
    eq_added=of(
        lambda: klass(Base)(),
        lambda o, x: x + 1 if o == 3 else x,
        on_class(__eq__=lambda self, other: True),
    ),
    contains_added=of(
        lambda: klass(List)([1]),
        lambda o, x: x + 1 if 1 in o else x,
        on_class(__contains__=lambda self, v: False),
    ),
    getitem_added=of(
        lambda: klass(List)([1]), lambda o, x: x * o[0], on_class(__getitem__=lambda self, v: 12)
    ),
    iter_added=of(
        lambda: klass(List)([1]),
        lambda o, x: [x * k for k in o],
        on_class(__iter__=lambda self: iter([5, 6])),
    ),
    add_added=of(lambda: klass(Base)(), lambda o, x: o + 3, on_class(__add__=lambda self, v: 3)),
    enum_value=of(lambda: Colour.BLUE, lambda o, x: x * o.value, lambda o: setting(o, _value_=20)),
    dataclass_default=of(
        lambda: Data, lambda c, x: x * c(1).b, lambda c: setting(c.__init__, __defaults__=(50.0,))
    ),
    new_added=of(
        lambda: klass(Base),
        lambda c, x: x * c().k,
        lambda c: setting(c, __new__=lambda cls: box(k=5)),
    ),
    init_replaced=of(
        lambda: klass(Sized),
        lambda c, x: x * c(3).n,
        lambda c: setting(c, __init__=lambda self, n: setattr(self, "n", 50)),
    ),
    metaclass_call=of(
        lambda: Meta("C", (), {"__init__": lambda s: None}),
        lambda c, x: x + isinstance(x, c),
        lambda c: setting(Meta, __instancecheck__=lambda c, o: True),
    ),
    lru_cache_cleared=lambda: lru(),
    slot=lambda: slots(),
    slot_deleted=lambda: slots(True),
    abc_register=lambda: registered(),
    attribute_of_class_with_same_name=of(
        lambda: box(a=klass(Base)), lambda o, x: x * o.a.k, lambda o: setting(o, a=Other)
    ),
    random_seed=lambda: (
        (lambda x: (torch.manual_seed(3), x + torch.rand(3))[1]),
        changed(lambda: torch.manual_seed(9), lambda: None),
    ),
    random_state=lambda: (
        (lambda x: x + torch.rand(3)),
        changed(lambda: torch.manual_seed(9), lambda: None),
    ),
    threads=lambda: (
        (lambda x: x * torch.get_num_threads()),
        changed(lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
    ),
)


def lru():
    calls = [1]

    @functools.lru_cache
    def cached(k):
        return k * calls[0]

    def change():
        calls[0] = 5

    return (lambda x: x * cached(2)), changed(
        lambda: (change(), cached.cache_clear()),
        lambda: (calls.__setitem__(0, 1), cached.cache_clear()),
    )


def slots(deleted=False):
    s = Slotted()
    s.a = 2

    def f(x):
        return x * s.a if hasattr(s, "a") else x - 1

    return f, changed(
        lambda: s.__delattr__("a") if deleted else setattr(s, "a", 5), lambda: setattr(s, "a", 2)
    )


def registered():
    abstract = abc.ABCMeta("Abstract", (), {})
    plain = type("Plain", (), {})()

    def program(x):
        return x + 1 if isinstance(plain, abstract) else x

    return program, changed(lambda: abstract.register(type(plain)), lambda: None)


@pytest.mark.parametrize("name", STATES)
def test_state(name, alike):
    check_state(*STATES[name](), alike)
