"""Beside torch's own compiler: what it wraps, marks and runs does not change what we capture. In a
process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, warnings
import torch, torch._dynamo, torch.nn as nn
import bytecode_dynamo as bd

warnings.simplefilter("ignore")
other = torch.compile
theirs = torch._dynamo
assert torch.equal(other(lambda x: x.sin() + 1, backend="eager")(torch.ones(2)), torch.ones(2).sin() + 1)
CHECKS = {}
GRAPHS = {}


def check(graphs=1):
    def add(make):
        CHECKS[make.__name__], GRAPHS[make.__name__] = make, graphs
        return make
    return add


def plain(x):
    return x.cos()


def optimizer(kind):
    def make():
        torch.manual_seed(0)
        m = nn.Linear(3, 3)
        o = kind(m.parameters(), 0.1)
        m(torch.ones(2, 3)).sum().backward()
        def step(x):
            o.step()
            return [p.detach().clone() for p in m.parameters()]
        return step
    return make


for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
    CHECKS[kind.__name__], GRAPHS[kind.__name__] = optimizer(kind), None


@check()
def compiled_function():
    g = other(plain, backend="eager")
    return lambda x: g(x) + g(x * 2)


@check()
def compiled_module():
    torch.manual_seed(0)
    m = other(nn.Linear(3, 3), backend="eager")
    return lambda x: m(x) + m.weight.sum()


@check()
def module_compiled_in_place():
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    m.compile(backend="eager")
    return lambda x: m(x)


@check()
def compiled_method():
    class Box:
        k = 2
        @torch.compile(backend="eager")
        def scaled(self, x):
            return x * self.k
    box = Box()
    return lambda x: box.scaled(x) + 1


@check(2)
def disabled():
    @torch.compiler.disable
    def g(x):
        return x.sin()
    return lambda x: g(x * 2) + 1


@check(2)
def break_of_theirs():
    def f(x):
        y = x + 1
        theirs.graph_break()
        return y * 2
    return f


@check()
def constant_result():
    @torch.compiler.assume_constant_result
    def k():
        return len(str(torch.__version__)) and 3
    return lambda x: x * k()


@check()
def questions():
    def f(x):
        return (x + 1 if torch.compiler.is_compiling() or True else x), theirs.is_compiling() or True
    return f


@check()
def traced_without_looking():
    @theirs.nonstrict_trace
    def g(x, named):
        return x * named["by"][0]
    return lambda x: g(x + 1, {"by": [x]}) * 2


@check(None)
def compiled_inside():
    def f(x):
        def g(a):
            return a * x
        return other(g, backend="eager")(x) + 1
    return f


@check(None)
def called_natively():
    g = other(plain, backend="eager")
    def f(x):
        return bd.disable(g)(x) + g(x)
    return f


@check(None)
def breaks_before_theirs():
    g = other(plain, backend="eager")
    def f(x):
        y = x * 2
        bd.graph_break()
        for h in (g, plain):
            y = h(y)
        return y
    return f


@check()
def module_made_inside():
    def f(x):
        m = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            m.weight.fill_(0.5)
        return m(x)
    return f


@check()
def labelled_function():
    return torch.profiler.record_function("label")(lambda x: x.cos())


def nested():
    inner = bd.optimize("eager")(plain)
    outer = other(lambda x: inner(x) + inner(x * 2), backend="eager")
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(outer(x), x.cos() + (x * 2).cos())


def marks():
    x = torch.randn(4, 3)
    theirs.mark_dynamic(x, 0, min=2, max=100)
    f = bd.optimize("eager")(lambda x: x + x.shape[0])
    for n in (4, 5, 7):
        if n > 4:
            x = torch.randn(n, 3)
        assert torch.equal(f(x), x + n)
    assert bd.counters["graphs"] == 1, bd.counters["graphs"]


def run(name):
    bd.reset()
    if CHECKS.get(name) is None:
        return {"nested": nested, "marks": marks}[name]()
    plain, region = CHECKS[name](), bd.optimize("eager")(CHECKS[name]())
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(4, 3)
        a, b = plain(x.clone()), region(x.clone())
        assert repr(a) == repr(b), (a, b)
    assert not bd.counters["fallbacks"]
    wanted = GRAPHS[name]
    assert bd.counters["graphs"] == wanted or wanted is None and bd.counters["graphs"], bd.counters["graphs"]
    if name[0].isupper() or wanted == 1:
        assert not bd.counters["graph_breaks"]


outcome = {}
for name in (*CHECKS, "nested", "marks"):
    try:
        run(name)
        outcome[name] = ""
    except Exception as error:
        outcome[name] = f"{type(error).__name__}: {error}"
print(json.dumps(outcome))
"""

NAMES = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "compiled_function",
    "compiled_module",
    "module_compiled_in_place",
    "compiled_method",
    "disabled",
    "break_of_theirs",
    "constant_result",
    "questions",
    "traced_without_looking",
    "compiled_inside",
    "called_natively",
    "breaks_before_theirs",
    "module_made_inside",
    "labelled_function",
    "nested",
    "marks",
]


@pytest.fixture(scope="module")
def outcome() -> dict[str, str]:
    """What the program said of each of its parts."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_beside_the_other_compiler(outcome, name):
    assert sorted(outcome) == sorted(NAMES)
    assert outcome[name] == ""
