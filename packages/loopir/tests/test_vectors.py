"""Products of a matrix and a vector are sums over rows; what repeats a value is not stored."""

from __future__ import annotations

import dataclasses

import primops
import pytest
import torch
import torch.nn.functional as F
from loopir import Options, compile_graph
from loopir.ir.program import ExternCall, Launch
from loopir.lowering import lower, products
from loopir.schedule import schedule
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace


def program_of(function, *args):
    graph = trace(function, *args)
    options = Options(check=True, inference=True)
    return compile_graph(graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("function", "shapes", "calls"),
    [
        (lambda x, w: F.linear(x, w), ((1, 8), (5, 8)), 0),
        (lambda x, w, b: F.linear(x, w, b).relu(), ((1, 8), (5, 8), (5,)), 0),
        (lambda x, w: F.silu(F.linear(x, w)) * F.linear(x, w + 1), ((1, 8), (5, 8)), 0),
        (lambda x, v: x @ v, ((5, 8), (8, 1)), 0),
        (lambda x, v, b: torch.addmm(b, x, v), ((5, 8), (8, 1), (1, 1)), 0),
        (lambda x, v, b: torch.addmm(b, x, v), ((5, 8), (8, 1), (5, 1)), 0),
        (lambda x, w: x[:, 2:] @ w[:, 2:].t(), ((1, 8), (5, 8)), 0),
        (lambda x, w: F.linear(x, w), ((1, 0), (5, 0)), 0),
        (lambda x, w: F.linear(x, w), ((1, 8), (0, 8)), 0),
        (lambda x, w: F.linear(x, w), ((1, 1), (1, 1)), 0),
        (lambda x, w: F.linear(x, w), ((1, 200000), (1, 200000)), 0),
        (lambda x, w: F.linear(x, w), ((2, 8), (5, 8)), 1),
        (lambda x, w: x @ w, ((1, 8), (8, 5)), 1),  # the sum doesn't run along memory
        (lambda x, w, b: torch.addmm(b, x, w.t(), beta=2), ((1, 8), (5, 8), (5,)), 1),
    ],
)
def test_products(monkeypatch, function, shapes, calls, dtype):
    monkeypatch.setattr(products, "DEVICES", ("cpu",))
    torch.manual_seed(0)
    args = [torch.randn(shape).to(dtype) for shape in shapes]
    host = program_of(function, *args)
    found = [step for step in host.program.steps if isinstance(step, ExternCall)]
    assert len(found) == calls
    (result,) = host(*args)
    torch.testing.assert_close(result, function(*args), rtol=2e-2, atol=2e-2)


def test_the_cpu_has_products_of_its_own():
    args = (torch.randn(1, 8), torch.randn(5, 8))
    host = program_of(F.linear, *args)
    assert any(isinstance(step, ExternCall) for step in host.program.steps)


def test_what_repeats_a_value_is_not_stored():
    def function(places, x):
        rows = (-places.clamp(-3, 3) + 3).clamp(0, 7).expand(6, 16, 16)
        for _ in range(6):
            x = x.gather(2, rows).sort()[0][..., :8] + 1
        return x

    torch.manual_seed(0)
    args = (torch.randint(-9, 9, (16, 16)), torch.randn(6, 16, 8))
    host = program_of(function, *args)
    launched = {name for step in host.program.steps for name in getattr(step, "buffers", ())}
    found = [host.program.buffers[name] for name in launched if name != "in_in0"]
    assert [tuple(b.shape) for b in found if b.dtype is torch.int64] == [(16, 16)]
    torch.testing.assert_close(host(*args)[0], function(*args))


@pytest.mark.parametrize(
    ("device", "rows", "launches"), [("cuda", 512, 1), ("cuda", 1 << 14, 2), ("cpu", 512, 2)]
)
def test_short_products_of_one_vector_are_one_launch(monkeypatch, device, rows, launches):
    monkeypatch.setattr(products, "DEVICES", ("cpu", "cuda"))
    args = (torch.empty(1, 256), torch.empty(rows, 256), torch.empty(rows, 256))
    gm = primops.decompose(trace(lambda x, v, w: (F.linear(x, v), F.linear(x, w)), *args))
    for node in gm.graph.nodes:
        if isinstance(node.meta.get("val"), primops.TensorMeta):
            place = torch.device(device, 0) if device == "cuda" else torch.device(device)
            node.meta["val"] = dataclasses.replace(node.meta["val"], device=place)
    options = Options(inference=True)
    steps = schedule(lower(gm, options), options).steps
    assert sum(isinstance(step, Launch) for step in steps) == launches
