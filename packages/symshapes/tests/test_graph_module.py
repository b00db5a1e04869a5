"""Graph modules whose code is generated when it is needed."""

from __future__ import annotations

import copy
import gc
import inspect
import linecache
import pickle
import weakref

import pytest
import torch
from symshapes import LazyGraphModule
from torch.fx import graph_module


@pytest.fixture
def module():
    traced = torch.fx.symbolic_trace(lambda x, scale=2.0: (x * scale).sin())
    return LazyGraphModule(torch.nn.Module(), traced.graph, "Named")


def has_code(module):
    return "_code" in vars(module)


def test_code_is_made_when_it_is_called(module):
    x = torch.randn(3)
    assert not has_code(module)
    expected = (x * 3.0).sin()
    assert torch.equal(module(x, scale=3.0), expected)
    made = type(module).forward
    assert torch.equal(module.forward(x, 3.0), expected)
    assert type(module).forward is made


def test_forward_has_the_graphs_signature(module):
    assert list(inspect.signature(module.forward).parameters) == ["x", "scale"]


def test_forward_of_the_class_takes_the_module(module):
    x = torch.randn(3)
    assert torch.equal(type(module).forward(module, x), (x * 2.0).sin())


def test_it_can_be_traced_again(module):
    x = torch.randn(3)
    traced = torch.fx.symbolic_trace(module)
    assert [n.name for n in traced.graph.find_nodes(op="placeholder")] == ["x", "scale"]
    assert torch.equal(traced(x), (x * 2.0).sin())
    assert torch.equal(torch.jit.trace(module, x)(x), (x * 2.0).sin())


def test_code_is_made_for_who_reads_it(module):
    assert "sin" in module.code
    assert type(module).__name__ == "Named"
    assert "sin" in str(module)


def test_edits_count_once_recompiled(module):
    x = torch.randn(3)
    module(x)
    next(n for n in module.graph.nodes if n.target == "sin").target = "cos"
    module.recompile()
    assert torch.equal(module(x), (x * 2.0).cos())


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_compute_the_same(module, duplicate):
    x = torch.randn(3)
    assert torch.equal(duplicate(module)(x), (x * 2.0).sin())


def test_attributes_that_are_missing_are_errors(module):
    with pytest.raises(AttributeError, match="weight"):
        _ = module.weight


def test_text_of_a_module_that_is_gone_is_dropped(module):
    other = LazyGraphModule(module, copy.deepcopy(module.graph))
    watched = weakref.ref(other)
    other(torch.randn(3))
    code = type(other).forward.__code__
    kept = graph_module._loader.eval_cache
    assert "sin" in kept[code.co_filename]
    del other
    gc.collect()
    assert watched() is None
    assert code.co_filename not in kept
    assert code.co_filename not in linecache.cache
