"""Convolution and linear layers through oneDNN: what is taken, and that a changed parameter is
always seen.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import inductor_cpp.running.contraction
import pytest
import torch
import torch.nn.functional as F
from inductor_cpp import compile_graph
from inductor_cpp.building import build as libraries
from inductor_cpp.running import packing
from loopir import ArtifactStore, HostProgram, Options, ToolError
from loopir.backend import Contraction
from primops import TensorMeta
from primops.testing import trace

CONVOLUTION, LINEAR = "inductor_cpp.convolution.default", "inductor_cpp.linear.default"


def build(fn: Callable, inputs: Sequence[torch.Tensor], static: int, store) -> HostProgram:
    """``fn`` compiled for inference; the last ``static`` inputs are parameters."""
    with torch.no_grad():
        graph = trace(fn, *inputs)
    for node in graph.graph.find_nodes(op="placeholder")[len(inputs) - static :]:
        node.meta["static"] = True
    return compile_graph(graph, inputs, store=store, options=Options(inference=True, check=True))


def agree(
    host: HostProgram, fn: Callable, inputs: Sequence[torch.Tensor], tolerance: float = 1e-5
) -> None:
    (actual,), expected = host(*inputs), fn(*inputs)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert actual.stride() == expected.stride()


def block(x, w, mean, variance, gamma, beta):
    return F.relu(
        F.batch_norm(F.conv2d(x, w, None, 2, 1), mean, variance, gamma, beta, False, 0.1, 1e-5)
    )


def parameters(
    out: int = 8, inputs: int = 4, size: int = 3, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [
        torch.randn(out, inputs, size, size, dtype=dtype),
        *(torch.rand(out, dtype=dtype) + 0.5 for _ in range(4)),
    ]


def test_norm_and_relu_go_into_the_convolution(store) -> None:
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, inputs, 5, store)
    assert host.extern_ops == (CONVOLUTION,)
    agree(host, block, inputs)


def test_a_weight_in_channels_last_memory_is_packed(store) -> None:
    weight, *others = parameters()
    inputs = [
        torch.randn(2, 4, 9, 9),
        weight.to(memory_format=torch.channels_last),
        *others,
    ]
    host = build(block, inputs, 5, store)
    assert host.extern_ops == (CONVOLUTION,)
    agree(host, block, inputs)


def test_weights_that_are_arguments_are_packed(store) -> None:
    """As in printed graphs, which get their parameters as arguments."""
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, inputs, 0, store)
    assert host.extern_ops == (CONVOLUTION,)
    agree(host, block, inputs)


@pytest.mark.parametrize("as_new", ["tensors", "values"])
def test_weights_that_are_new_in_each_call_are_not_packed_for_ever(
    store, as_new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_packed", {})
    monkeypatch.setattr(packing, "_unused", Counter())
    host = build(block, [torch.randn(2, 4, 9, 9), *parameters()], 0, store)
    weight, *norm = parameters()
    for _ in range(2 * packing.MOST_UNUSED):
        weight = torch.randn_like(weight) if as_new == "tensors" else weight.neg_()
        agree(host, block, [torch.randn(2, 4, 9, 9), weight, *norm])
    assert max(packing._unused.values()) == packing.MOST_UNUSED


def test_folded_parameters_keep_the_dtype_of_the_weight() -> None:
    weight = torch.ones(2, 3, 1, 1, dtype=torch.bfloat16)
    norm = [torch.full((2,), n, dtype=torch.bfloat16) for n in (0.5, 3.0, 2.0, 0.25)]
    folded, shift = packing.fold([weight, None, *norm], 1.0)
    assert shift is not None
    assert (folded.dtype, shift.dtype) == (torch.bfloat16, torch.bfloat16)
    assert folded.unique().tolist() == [1.0] and shift.tolist() == [-0.25, -0.25]


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda p: p.add_(0.5),
    "through data": lambda p: p.data.mul_(-1),
    "one element of data": lambda p: p.data.view(-1)[3:4].add_(2),
    "through numpy": lambda p: p.numpy().fill(0.25),
    "two signs": lambda p: p.data.view(-1)[0:128:64].neg_(),
    "through a view": lambda p: p[0].zero_(),
    "new storage": lambda p: p.set_(torch.ones_like(p)),
    "exchanged halves": lambda p: p.data.copy_(p.data.roll(p.shape[0] // 2, 0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", [1, 2, 4])
def test_changed_parameter_is_seen(store, change: str, which: int) -> None:
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, inputs, 5, store)
    for _ in range(2):
        agree(host, block, inputs)
    CHANGES[change](inputs[which])
    agree(host, block, inputs)


@pytest.fixture
def without_compiler(tmp_path, monkeypatch):
    """A machine without a C++ compiler, and a store without libraries."""

    def find_toolchain():
        raise ToolError("no compiler")

    monkeypatch.setattr(packing, "find_toolchain", find_toolchain)
    monkeypatch.setattr(packing, "_digests", {})
    monkeypatch.setattr(libraries, "_loaded", {})
    return ArtifactStore(tmp_path / "empty")


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameter_is_seen_without_a_compiler(change, without_compiler) -> None:
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, inputs, 5, without_compiler)
    agree(host, block, inputs)
    CHANGES[change](inputs[1])
    agree(host, block, inputs)
    assert packing._digest() is packing._slow_digest


def test_store_has_what_packing_needs(store, request) -> None:
    """All libraries of a program are in its store, so another process needs no compiler."""
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    build(block, inputs, 5, store)
    request.getfixturevalue("without_compiler")
    build(block, inputs, 5, store)
    assert packing._digest() is not packing._slow_digest


def test_optimizer_step_is_seen(store) -> None:
    weight = torch.nn.Parameter(parameters()[0])
    x = torch.randn(2, 4, 9, 9)
    host = build(lambda x, w: F.conv2d(x, w), [x, weight], 1, store)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        F.conv2d(x, weight).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            agree(host, lambda x, w: F.conv2d(x, w), [x, weight])


def test_parameters_of_equal_shape_do_not_meet(store) -> None:
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, inputs, 5, store)
    for seed in range(3):
        torch.manual_seed(seed)
        agree(
            host, block, [torch.randn(2, 4, 9, 9), *(torch.rand_like(p) + 0.1 for p in inputs[1:])]
        )
    agree(host, block, inputs)


def test_one_weight_with_two_geometries(store) -> None:
    def fn(x, w):
        return F.conv2d(x, w, padding=1) + F.conv2d(x, w, padding=2, dilation=2)

    inputs = [torch.randn(1, 4, 8, 8), parameters()[0]]
    host = build(fn, inputs, 1, store)
    assert host.extern_ops == (CONVOLUTION, CONVOLUTION)
    agree(host, fn, inputs)


STEPS: dict[str, Callable] = {
    "residual": lambda x, y, w, b: F.relu(F.conv2d(x, w, b, padding=1) + y),
    "residual first": lambda x, y, w, b: y + F.conv2d(x, w, b, padding=1),
    "silu": lambda x, y, w, b: F.silu(F.conv2d(x, w, b, padding=1)),
    "hardswish": lambda x, y, w, b: F.hardswish(F.conv2d(x, w, b, padding=1)),
    "sigmoid": lambda x, y, w, b: torch.sigmoid(F.conv2d(x, w, b, padding=1)) * y,
    "used twice": lambda x, y, w, b: (lambda c: F.relu(c) + c)(F.conv2d(x, w, b, padding=1)),
    "grouped": lambda x, y, w, b: F.conv2d(x, w[:, :1], b, padding=1, groups=4) - y,
    "scaled residual": lambda x, y, w, b: torch.add(F.conv2d(x, w, b, padding=1), y, alpha=3),
    "strided weight": lambda x, y, w, b: F.conv2d(x, w.transpose(2, 3), b, padding=1),
    "channels last weight": lambda x, y, w, b: F.conv2d(x,
    w.contiguous(memory_format=torch.channels_last), b, padding=1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STEPS)
def test_operations_after_a_convolution(store, name: str, dtype: torch.dtype) -> None:
    weight, bias = parameters(dtype=dtype)[:2]
    inputs = [
        torch.randn(2, 4, 6, 6, dtype=dtype),
        torch.randn(2, 8, 6, 6, dtype=dtype),
        weight,
        bias,
    ]
    host = build(STEPS[name], inputs, 2, store)
    agree(host, STEPS[name], inputs, 1e-5 if dtype is torch.float32 else 0.06)


def test_a_packed_call_does_not_keep_the_parameter() -> None:
    weight, plan = (
        torch.nn.Parameter(torch.randn(4, 3)),
        json.dumps({"unary": "none", "algorithm": "", "weight": 0}),
    )
    # for no rows, the call takes the weight as it is
    packing.LINEAR.direct(torch.zeros(0, 3), [weight, None], None, plan)  # type: ignore[attr-defined]
    parameter = weakref.ref(weight)
    del weight
    assert parameter() is None


def test_empty_batch(store) -> None:
    inputs = [torch.randn(2, 4, 9, 9), *parameters()]
    host = build(block, [inputs[0][:0], *inputs[1:]], 5, store)
    agree(host, block, [inputs[0][:0], *inputs[1:]])


LINEARS: dict[str, Callable] = {
    "plain": lambda x, y, w, b: F.linear(x, w),
    "bias": lambda x, y, w, b: F.linear(x, w, b),
    "relu": lambda x, y, w, b: F.relu(F.linear(x, w, b)),
    "residual": lambda x, y, w, b: F.linear(x, w, b) + y,
    "gelu": lambda x, y, w, b: F.gelu(F.linear(x, w, b)),
    "matrix product": lambda x, y, w, b: x.flatten(0, 1) @ w,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LINEARS)
def test_linear_layers(
    store, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(inductor_cpp.running.contraction, "LEAST_PACKED", 1 << 27)
    torch.manual_seed(2)
    x, y, w, b = (
        torch.randn(*shape, dtype=dtype)
        for shape in ((4, 128, 512), (4, 128, 512), (512, 512), (512,))
    )
    inputs = [x, y, w * 0.05, b]
    host = build(LINEARS[name], inputs, 2, store)
    is_offered = any(op.startswith(LINEAR) for op in host.extern_ops)
    wanted = dtype is torch.bfloat16 and inductor_cpp.running.contraction._is_supported(dtype)
    assert name == "matrix product" or is_offered == wanted
    agree(host, LINEARS[name], inputs, 1e-4 if dtype is torch.float32 else 0.05)
    w.data.mul_(0.5)
    inputs[2].data.view(-1)[77:78].add_(4)
    agree(host, LINEARS[name], inputs, 1e-4 if dtype is torch.float32 else 0.05)


OFFERED: dict[str, tuple[bool, dict[str, Any]]] = {
    "parameter": (True, {}),
    "frozen": (True, {"static": (False,) * 3, "constant": (False, True, False)}),
    "training": (False, {"inference": False}),
    "input": (False, {"static": (False, False, True)}),
    "small": (False, {"rows": 8}),
    "float32": (False, {"dtype": torch.float32}),
    "strided": (False, {"stride": (2048, 1)}),
}


@pytest.mark.parametrize("name", OFFERED)
def test_which_linear_layers_are_packed(name: str) -> None:
    """A product of two arguments is one of activations as likely as not: these are new each time."""
    wanted, given = OFFERED[name]
    rows, dtype = given.get("rows", 1024), given.get("dtype", torch.bfloat16)
    x, weight, bias = torch.empty(rows, 1024), torch.empty(1024, 1024), torch.empty(1024)
    metas = [TensorMeta(t.shape, t.stride(), dtype, t.device) for t in (x, weight, bias)]
    metas[1] = replace(metas[1], strides=given.get("stride", metas[1].strides))
    static, constant = given.get("static", (False, True, True)), given.get("constant", (False,) * 3)
    contraction = Contraction(
        "linear", tuple(metas), (), constant, static, (), given.get("inference", True)
    )
    offer = inductor_cpp.running.contraction._offer_linear(contraction, metas[0], metas[1])
    assert (offer is not None) == wanted
