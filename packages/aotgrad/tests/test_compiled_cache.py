"""Cached calls: their text names everything that they use, and a damaged one is a miss."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import torch
from aotgrad import aot_backend, run_eager
from aotgrad.compiling.compiled_cache import CachedProgram, look_up
from hypothesis import given, settings
from symshapes.testing.texts import damaged_texts
from symshapes.text.values import Unwritable

PROGRAMS = {
    "training": lambda x, w: torch.tanh(x @ w),
    "write": lambda x, w: (x.mul_(2), w.t() * 3),
    "views": lambda x, w: (x[0], x.exp().t(), w.split(2)[0]),
    "several results": lambda x, w: (x.sum(), (w * 2).max(0).values),
}


class Memory:
    """A cache of one graph."""

    def __init__(self, data=None, lines=()):
        self.data = data
        self.lines = lines
        self.constants = {}
        self.graphs = {}

    def __call__(self, graph, inputs, grad_enabled):
        return self

    def keep(self, what):
        def compile_graph(graph, inputs):
            self.graphs[what] = run_eager(graph, inputs)
            return self.graphs[what]

        return compile_graph

    def compiled(self, what):
        return self.graphs[what]

    def constant_name(self, tensor):
        return None

    def put(self, write):
        with suppress(Unwritable):
            self.data = write()

    def call(self, f):
        """``f`` compiled with this cache."""
        inputs = [torch.zeros(4, 4, requires_grad=i > 0) for i in range(2)]
        names = "forward", "backward"
        backend = aot_backend(
            *map(self.keep, names), inference_compiler=self.keep("inference"), cache=self
        )
        return backend(torch.fx.symbolic_trace(f), inputs)


def step(call):
    """Results and gradient of a call."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    results = call(x, w)
    results = results if isinstance(results, tuple | list) else [results]
    (gradient,) = torch.autograd.grad(sum(r.sum() for r in results), w)
    return [x, *results, gradient]


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_come_back_from_their_text(name):
    f, cache = PROGRAMS[name], Memory()
    first = step(cache.call(f))
    text = cache.data
    assert isinstance(text, str)
    again = step(cache.call(f))
    for a, b, c in zip(again, first, step(f), strict=True):
        assert torch.equal(a, b) and a._is_view() == b._is_view()
        assert a.requires_grad == c.requires_grad
        torch.testing.assert_close(a, c)
    assert cache.data is text  # nothing was compiled


def test_objects_of_the_process_have_no_text():
    cache, weight = Memory(), torch.ones(4)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x, w):
            return x @ w, self.weight

    cache.call(Module())
    assert cache.data is None


def test_lines_are_those_of_the_graph_that_was_looked_up():
    names = "{'transformed': aotgrad.running.fallback.Fallback(eager, 'why', line(1))}"
    text = json.dumps(["", names, "(False, (), (), None)"])
    cached = look_up(Memory(text, ["first", "second"]), len)
    assert cached is not None and cached.names["transformed"].detail == "second"
    assert look_up(Memory(text, ["first"]), len) is None


def texts():
    cache = Memory()
    cache.call(PROGRAMS["training"])
    return cache.data


TEXT = texts()


@given(damaged_texts(TEXT))
@settings(max_examples=50)
def test_a_damaged_text_is_a_miss(text):
    assert isinstance(look_up(Memory(text), len), CachedProgram | None)


@given(damaged_texts(json.loads(TEXT)[1]))
@settings(max_examples=150)
def test_damaged_names_are_a_miss(names):
    source, _, facts = json.loads(TEXT)
    text = json.dumps([source, names, facts])
    assert isinstance(look_up(Memory(text), len), CachedProgram | None)
