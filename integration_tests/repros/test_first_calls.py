"""Calls that compile: what they keep, and what else sees them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torchstrata
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
def test_inputs_of_the_first_call_are_not_kept(backend):
    layer = torch.nn.Linear(3, 2)
    compiled = torchstrata.compile(layer, backend=backend)
    gc.disable()
    try:
        x = torch.ones(4, 3, requires_grad=True)
        compiled(x).sum().backward()
        kept = weakref.ref(x)
        del x
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "torchstrata"])
def test_modes_of_the_program_do_not_see_what_is_traced(backend):
    seen = []

    class Listing(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    compiled, x = torchstrata.compile(lambda x: x @ x, backend=backend), torch.ones(3, 3)
    with Listing():
        compiled(x)
    assert seen == [torch.ops.aten.mm.default]


def test_precision_set_by_backend(monkeypatch):
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        compiled = torchstrata.compile(lambda x: x.relu() @ x)
        assert torch.equal(compiled(torch.ones(2, 2)), torch.full((2, 2), 2.0))
    finally:
        matmul.fp32_precision = before


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torchstrata.FallbackWarning")
def test_a_first_call_within_jit_trace_is_traced():
    traced = torch.jit.trace(torchstrata.compile(lambda x: x.sin() * 2), (torch.ones(3),))
    x = torch.arange(3.0)
    assert torch.allclose(traced(x), x.sin() * 2)
