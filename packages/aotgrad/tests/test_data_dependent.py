"""Sizes and numbers that depend on data become unbacked symbols of the graph."""

from __future__ import annotations

import pytest
import torch
from aotgrad import aot_backend, check_functional, run_eager
from symshapes import FakeTensorMode, ShapeEnv


def captured(f, *examples):
    gm = torch.fx.symbolic_trace(f)
    mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), examples):
        node.meta["val"] = mode.from_real(example)
    return gm


def item(x, w):
    return (x * w * (x > 0).sum().item(),)


def rows(x, w):
    return (x * w)[x[:, 0] > 0].sum(0), x.nonzero()


def sizes(x, w):
    n = (x > 0).sum().item()
    return n, w.exp() * n


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("f", [item, rows, sizes], ids=lambda f: f.__name__)
def test_data_dependent(f, grad):
    graphs = []

    def compiler(gm, inputs):
        check_functional(gm)
        graphs.append(gm)
        return gm.forward

    def inputs(seed):
        torch.manual_seed(seed)
        return torch.randn(5, 3), torch.randn(5, 3, requires_grad=grad)

    call = aot_backend(compiler)(captured(f, *inputs(0)), list(inputs(0)))
    for seed in range(3):
        (x, w), (x2, w2) = inputs(seed), inputs(seed)
        ours, expected = call(x, w), f(x2, w2)
        torch.testing.assert_close(tuple(ours), tuple(expected))
        if grad:
            ours[-1 if f is sizes else 0].sum().backward()
            expected[-1 if f is sizes else 0].sum().backward()
            torch.testing.assert_close(w.grad, w2.grad)


def test_run_eager_is_the_forward():
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    assert run_eager(gm, [])(1) == 2
