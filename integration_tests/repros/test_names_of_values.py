"""Two values with one name: numbers that shared a symbol, inputs named like what a generated text
has itself.
"""

from __future__ import annotations

import random

import aotgrad
import pytest
import torch
import torchstrata
from torch import fx

from .backend import compiled

FLOATS = {
    "drawn and given": lambda x, t, e: x * random.random() * e,
    "read and given": lambda x, t, e: x * t.item() * e,
    "drawn, read and given": lambda x, t, e: x * random.random() * t.item() + e,
}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_of_several_origins(name, dynamic):
    torchstrata.reset()
    function = torchstrata.compile(FLOATS[name], dynamic=dynamic)
    for e in (0.9, 0.8, 0.7):
        results = []
        for call in (FLOATS[name], function):
            random.seed(0)
            results.append(call(torch.ones(3), torch.tensor(0.25), e))
        torch.testing.assert_close(*results)


TAKEN = [
    "v0",
    "y0",
    "b0",
    "d0",
    "box",
    "ctx",
    "results",
    "given",
    "forward",
    "backward",
    "zeros",
    "mask",
    "cpu",
    "transforms",
    "_",
]


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("other", ["x", "v1", "v0_"])
def test_inputs_of_a_graph_have_any_names(name, other):
    graph = fx.Graph()
    a, b = graph.placeholder(name), graph.placeholder(other)
    sine = graph.call_function(torch.sin, (a,))
    graph.output(
        (graph.call_function(torch.mul, (sine, b)), graph.call_function(torch.cos, (b,)), sine)
    )
    inputs = [torch.linspace(-1, 1, 4, requires_grad=True), torch.linspace(1, 2, 4)]
    call = aotgrad.aot_backend(aotgrad.run_eager)(fx.GraphModule(torch.nn.Module(), graph), inputs)
    for place in (0, 2):
        results = call(*inputs)
        expected = inputs[0].sin() * inputs[1], inputs[1].cos(), inputs[0].sin()
        torch.testing.assert_close(tuple(results), expected)
        gradients = [torch.autograd.grad(r[place].sum(), inputs[0]) for r in (results, expected)]
        torch.testing.assert_close(*gradients)


def test_operators_whose_names_differ_in_the_place_of_a_dot(tmp_path):
    with (
        torch.library._scoped_library("strata_a", "FRAGMENT") as one,
        torch.library._scoped_library("strata", "FRAGMENT") as two,
    ):
        for library, name, step in ((one, "shift", 1), (two, "a_shift", 2)):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x, step=step: x + step, "CompositeExplicitAutograd")

        def both(x):
            return torch.ops.strata_a.shift(x) * 4 + torch.ops.strata.a_shift(x)

        x = torch.zeros(2)
        torch.testing.assert_close(compiled(both, (x,), tmp_path)(x)[0], both(x))
