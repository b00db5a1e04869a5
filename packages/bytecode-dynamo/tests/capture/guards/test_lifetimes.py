"""What is dropped is freed; many calls leave nothing behind."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import bytecode_dynamo as bd
import pytest

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


@pytest.mark.slow
def test_many_calls_leak_nothing():
    net = Net().eval()
    captured = bd.optimize("eager")(lambda x, k: net(x) if k else x + 1)

    def calls(n):
        for k in range(n):
            captured(X, k % 10 == 0)
        gc.collect()

    calls(1000)
    tracemalloc.start()
    try:
        calls(1000)
        objects, (memory, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        calls(100_000)
        assert abs(len(gc.get_objects()) - objects) < 100
        assert abs(tracemalloc.get_traced_memory()[0] - memory) < 100_000
    finally:
        tracemalloc.stop()
