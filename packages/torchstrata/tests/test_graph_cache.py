"""Which captured graphs have an entry in the cache."""

from __future__ import annotations

import pytest
import torch
from loopir import Undescribed
from torchstrata.graph_cache import _check_calls


def test_calls_of_torch_are_described():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("add", (graph.call_function(torch.sin, (x,)), 1)))
    _check_calls(torch.fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.parametrize("op", ["get_attr", "call_module"])
def test_constants_and_modules_are_not(op):
    module = torch.nn.Module()
    module.part = torch.nn.ReLU() if op == "call_module" else torch.nn.Parameter(torch.ones(2))
    graph = torch.fx.Graph()
    graph.output(graph.create_node(op, "part", (graph.placeholder("x"),) * (op == "call_module")))
    with pytest.raises(Undescribed):
        _check_calls(torch.fx.GraphModule(module, graph))


def test_operators_outside_torch_are_not():
    with torch.library._scoped_library("strata_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        for target in (torch.ops.strata_test.twice, torch.ops.strata_test.twice.default):
            graph = torch.fx.Graph()
            graph.output(graph.call_function(target, (graph.placeholder("x"),)))
            with pytest.raises(Undescribed):
                _check_calls(torch.fx.GraphModule(torch.nn.Module(), graph))
