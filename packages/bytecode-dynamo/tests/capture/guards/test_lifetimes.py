"""What is dropped is freed; many calls leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from pathlib import Path

import bytecode_dynamo as bd
import pytest
import torch

from .changing import Sized, X
from .test_modules import Net


def test_a_dropped_model_is_freed():
    net = Net()
    captured = bd.optimize("eager")(net)
    captured(X)
    watched = weakref.ref(net), weakref.ref(net.lin.weight)
    del net, captured
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_a_model_dropped_by_its_closure_is_freed():
    def make():
        net = Net()
        return weakref.ref(net), bd.optimize("eager")(lambda x: net(x) * 2)

    watched, captured = make()
    captured(X)
    del captured
    gc.collect()
    assert watched() is None


def test_an_argument_is_not_kept():
    captured = bd.optimize("eager")(lambda x, o: x * o.n + o.t)
    o = Sized(3)
    o.t = X.clone()
    captured(X, o)
    watched = weakref.ref(o), weakref.ref(o.t)
    del o
    gc.collect()
    assert [w() for w in watched] == [None, None]


def compiled(broken: bool) -> list[weakref.ref]:
    """Compile a function that recompiles and maybe breaks, and drop it; what should be gone."""
    net = Net().eval()

    class Backend:
        def __call__(self, gm, inputs):
            return gm.forward

    def program(x, n):
        y = net(x) * n
        if broken:
            print(end="")
        return y + 1

    backend = Backend()
    captured = bd.optimize(backend)(program)
    for n in (2.5, 3.5, 2, 3):
        captured(X, n)
    return [weakref.ref(part) for part in (net, backend, program, captured)]


@pytest.mark.parametrize("broken", [False, True])
def test_function_model_and_backend_are_freed_together(broken):
    watched = compiled(broken)
    gc.collect()
    assert [w() for w in watched] == [None] * 4


def test_compiling_again_and_again_leaves_nothing():
    def compile_some(n):
        for k in range(n):
            compiled(bool(k % 2))
        gc.collect()
        gc.collect()

    compile_some(8)
    objects = len(gc.get_objects())
    compile_some(20)
    assert len(gc.get_objects()) - objects < 400


@pytest.mark.slow
def test_a_million_calls_leak_nothing():
    net = Net().eval()

    def broken(x):
        y = x + 1
        print(end="")
        return y * 2

    captured = [
        bd.optimize("eager")(lambda x, k: net(x) if k else x + 1),
        bd.optimize("eager")(lambda x, k: broken(x)),
    ]
    parts = (None, X, net, broken, torch.Tensor)

    def calls(n):
        for k in range(n):
            captured[k & 1](X, k % 10 == 0)
        gc.collect()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    calls(50_000)
    objects, memory, references = (
        len(gc.get_objects()),
        resident(),
        [sys.getrefcount(part) for part in parts],
    )
    calls(1_000_000)
    assert abs(len(gc.get_objects()) - objects) < 100
    # an object of the smallest size left behind by each call takes 16 MB
    assert resident() - memory < 12 << 20
    assert all(abs(sys.getrefcount(part) - before) < 100 for part, before in zip(parts, references))
