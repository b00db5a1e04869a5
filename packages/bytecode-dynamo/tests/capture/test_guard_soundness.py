"""Soundness of guards: after a change of anything that was read, the result is eager's new
result.
"""

from __future__ import annotations

import collections
import enum
import functools
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch
import torch.nn as nn

X = torch.tensor([1.0, 2.0, 3.0])
CASES: dict[str, Any] = {}


def case(f):
    CASES[f.__name__] = f
    return f


# each case: returns (fn, list of zero-arg mutators, args maker)
GV = 2
GL = [1, 2]
GD = {"a": 1}


def helper(x):
    return x + 1


class Cfg:
    k = 3

    def __init__(s):
        s.v = 1

    def m(s, x):
        return x * s.v

    @property
    def p(s):
        return s.v


cfg = Cfg()


@case
def global_value():
    def f(x):
        return x * GV

    def m():
        global GV
        GV = 7

    return f, [m], lambda: (X,)


@case
def global_list():
    def f(x):
        return x * GL[0] + len(GL)

    return f, [lambda: GL.append(1), lambda: GL.__setitem__(0, 9)], lambda: (X,)


@case
def global_dict():
    def f(x):
        for k, v in GD.items():
            x = x + v + len(k)
        return x

    return f, [lambda: GD.update(bb=2), lambda: GD.pop("a"), lambda: GD.update(bb=5)], lambda: (X,)


@case
def helper_replaced():
    def f(x):
        return helper(x)

    def m():
        globals()["helper"] = lambda x: x - 1

    return f, [m], lambda: (X,)


@case
def helper_code():
    def h(x):
        return x + 1

    def f(x):
        return h(x)

    def m():
        h.__code__ = (lambda x: x * 5).__code__

    return f, [m], lambda: (X,)


@case
def defaults():
    def h(x, k=2, *, j=3):
        return x * k + j

    def f(x):
        return h(x)

    def m1():
        h.__defaults__ = (5,)

    def m2():
        h.__kwdefaults__["j"] = 9

    return f, [m1, m2], lambda: (X,)


@case
def closure():
    n = 2

    def f(x):
        return x * n

    def m():
        nonlocal n
        n = 5

    return f, [m], lambda: (X,)


@case
def attr():
    def f(x):
        return cfg.m(x) + cfg.k + cfg.p

    def m1():
        cfg.v = 5

    def m2():
        Cfg.k = 8

    def m3():
        cfg.k = 1

    def m4():
        Cfg.m = lambda s, x: x - 100

    def m5():
        Cfg.p = property(lambda s: 50)

    return f, [m1, m2, m3, m4, m5], lambda: (X,)


@case
def hasattr_():
    o = Cfg()

    def f(x):
        return x + 1 if hasattr(o, "zz") else x - 1

    def m():
        o.zz = 1

    return f, [m], lambda: (X,)


@case
def module_state():
    mod = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0))

    def f(x):
        return mod(x[None].expand(4, 3) + torch.arange(4)[:, None])

    def m1():
        mod.eval()

    def m2():
        mod[0].weight.data.mul_(2)

    def m3():
        mod[0].weight = nn.Parameter(torch.ones(3, 3))

    def m4():
        mod[0].bias = None

    def m5():
        mod[0].register_forward_hook(lambda m, i, o: o + 10)

    def m6():
        mod[0].register_forward_pre_hook(lambda m, i: (i[0] * 2,))

    def m7():
        mod[2] = nn.ReLU()

    def m8():
        mod.append(nn.Tanh())

    def m9():
        mod[0].forward = lambda x: x * 3

    def m10():
        mod[0].requires_grad_(False)

    def m11():
        mod.double()

    return f, [m1, m2, m3, m4, m5, m6, m7, m8, m9, m10], lambda: (X,)


@case
def global_hook():
    mod = nn.Linear(3, 3)
    h = []

    def f(x):
        return mod(x)

    def m():
        h.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3))

    def m2():
        h[0].remove()

    return f, [m, m2], lambda: (X,)


@case
def tensors():
    xs = [X]

    def f(x):
        return x * 2 + (1 if x.requires_grad else 0) + x.dim()

    def mk(v):
        def m():
            xs[0] = v

        return m

    return (
        f,
        [
            mk(v)
            for v in (
                X.double(),
                X[None],
                X.clone().requires_grad_(),
                torch.ones(5),
                torch.ones(3, 4).t()[0:2],
                torch.ones(1),
                torch.ones(0),
                X.int(),
            )
        ],
        lambda: (xs[0],),
    )


@case
def alias():
    a = [X.clone(), X.clone()]

    def f(x, y):
        x = x.clone() if False else x
        return x + y, (x is y)

    def m():
        a[1] = a[0]

    return f, [m], lambda: tuple(a)


@case
def modes():
    w = X.clone().requires_grad_()

    def f(x):
        return (x * w), torch.is_grad_enabled(), torch.zeros(2).dtype, x[None] @ x[:, None]

    st = []

    def m1():
        torch.set_grad_enabled(False)

    def m2():
        torch.set_default_dtype(torch.float64)

    def m3():
        st.append(torch.autocast("cpu", dtype=torch.bfloat16))
        st[0].__enter__()

    def m4():
        st[0].__exit__(None, None, None)

    def m5():
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)

    return f, [m1, m2, m3, m4, m5], lambda: (X,)


@case
def isinst():
    a = [1]

    def f(x, v):
        return x + 1 if isinstance(v, int) else x * 2

    def m(v):
        def g():
            a[0] = v

        return g

    return f, [m("s"), m(2.0), m(True), m(None), m([1]), m((1,)), m({})], lambda: (X, a[0])


@case
def nested_args():
    a = [{"k": [1, (2, 3)]}]

    def f(x, d):
        return x * d["k"][1][0]

    return (
        f,
        [lambda: a[0]["k"].__setitem__(1, (5,)), lambda: a[0].update(k=[0, [7]])],
        lambda: (X, a[0]),
    )


@case
def builtin_override():
    def f(x):
        return x * len([1, 2])

    def m():
        globals()["len"] = lambda v: 10

    def m2():
        del globals()["len"]

    return f, [m, m2], lambda: (X,)


@case
def torch_patch():
    o = torch.relu

    def f(x):
        return torch.relu(x - 2)

    def m():
        torch.relu = lambda v: v * 3

    def m2():
        torch.relu = o

    return f, [m, m2], lambda: (X,)


@case
def lambda_arg():
    a = [lambda x: x + 1]

    def f(x, g):
        return g(x)

    def m():
        a[0] = lambda x: x * 9

    return f, [m], lambda: (X, a[0])


@case
def partial_arg():
    a = [functools.partial(torch.add, alpha=2)]

    def f(x, g):
        return g(x, x)

    def m():
        a[0] = functools.partial(torch.add, alpha=5)

    return f, [m], lambda: (X, a[0])


@case
def dtype_arg():
    a = [torch.float32]

    def f(x, d):
        return x.to(d)

    def m():
        a[0] = torch.float64

    return f, [m], lambda: (X, a[0])


@case
def slots():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 2

    def f(x):
        return x * s.a

    def m():
        s.a = 4

    return f, [m], lambda: (X,)


@case
def od():
    d = collections.OrderedDict(a=1, b=2)

    def f(x):
        for k in d:
            x = x * 2 + d[k]
        return x

    return f, [lambda: d.move_to_end("a")], lambda: (X,)


@case
def kwargs_():
    k = [{}]

    def f(x, **kw):
        return x + sum(kw.values())

    def m(v):
        def g():
            k[0] = v

        return g

    return f, [m({"a": 1}), m({"a": 2}), m({"b": 2, "a": 1})], lambda: (X,)


@case
def default_arg_none():
    a = [None]

    def f(x, m):
        return x if m is None else x + m

    def m():
        a[0] = torch.ones(3)

    return f, [m], lambda: (X, a[0])


@case
def enum_():
    pass

    class E(enum.Enum):
        A = 1
        B = 2

    a = [E.A]

    def f(x, e):
        return x + 1 if e is E.A else x * e.value

    def m():
        a[0] = E.B

    return f, [m], lambda: (X, a[0])


@case
def base_class():
    class P:
        def m(s, x):
            return x + 1

    class Q(P):
        pass

    q = Q()

    def f(x):
        return q.m(x)

    def m1():
        Q.m = lambda s, x: x * 4

    def m2():
        del Q.m
        P.m = lambda s, x: x * 7

    def m3():
        q.__class__ = type("R", (P,), {"m": lambda s, x: x - 2})

    return f, [m1, m2, m3], lambda: (X,)


@case
def tensor_global():
    t = [torch.ones(3)]

    def f(x):
        return x + t[0]

    def m():
        t[0] = torch.ones(3) * 5

    def m2():
        t[0].mul_(3)

    return f, [m, m2], lambda: (X,)


@pytest.mark.parametrize("name", CASES)
def test_change_after_capture_gives_eagers_result(name, alike, monkeypatch):
    monkeypatch.setattr(bd.config, "recompile_limit", 16)
    torch.manual_seed(0)
    f, changes, arguments = CASES[name]()
    captured = bd.optimize("eager", fullgraph=True)(f)

    def compare(when):
        state = torch.get_rng_state()
        expected = f(*arguments())
        torch.set_rng_state(state)
        assert alike(expected, captured(*arguments())), when

    try:
        compare("first call")
        graphs = bd.counters["graphs"]
        compare("nothing changed")
        assert name == "module_state" or bd.counters["graphs"] == graphs
        for number, change in enumerate(changes):
            change()
            compare(f"change {number}")
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


def store(owner, value):
    owner.v = value


def test_stores_that_the_interpreter_has_specialised_are_seen():
    """Values stand in the object itself, and a store that has run often writes them there, also
    when there is a dictionary.
    """
    for _ in range(100):
        store(Cfg(), 0)
    owner = Cfg()
    captured = bd.optimize("eager")(lambda x: x * owner.v)
    for value in [1, 2] * 20:
        store(owner, value)
        assert torch.equal(captured(X), X * value)
    assert bd.counters["graphs"] == 2
