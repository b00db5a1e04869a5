"""Derivatives of prims: against finite differences, against autograd, in a graph, on symbolic
sizes.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from primops import (
    OPSET,
    DerivativeError,
    MetaReading,
    PrimError,
    TensorMeta,
    prims,
    reading_with,
    vjp,
)
from primops.builder import GraphBuilder
from primops.derivatives import DERIVATIVES, describe
from primops.derivatives.table import derive
from primops.meta import contiguous
from primops.testing.derivative_cases import Call, calls_of, spaced
from primops.testing.derivatives import check_call, check_derivatives, differentiable, has_rule
from primops.testing.strategies import prim_calls
from torch import fx

from packages.primops.tests.symbolic import symbolic_size

RULED = [name for name, prim in OPSET.items() if has_rule(prim)]
OVERWRITING = ("index_put", "scatter")  # autograd gives overwritten values a gradient, too
NO_AUTOGRAD = ("bessel", "modified", "scaled", "spherical", "chebyshev", "shifted", "hermite",
               "laguerre", "legendre", "erfcx", "floor_div")  # fmt: skip


def test_every_prim_has_a_verdict():
    assert set(DERIVATIVES) == set(OPSET.values())
    for prim in OPSET.values():
        assert describe(prim)
        stated = DERIVATIVES[prim].keys()
        assert "*" in stated or (set(prim.operands) == stated and not prim.variadic), prim


@pytest.mark.parametrize("name", RULED)
def test_rules_agree_with_finite_differences(name):
    (score,) = check_derivatives([name])
    assert not score.errors, score.errors
    assert score.elements > 0


def gradients_by_autograd(call: Call, weights: torch.Tensor) -> list[torch.Tensor]:
    positions = [*differentiable(call)]
    operands = [x.clone() if isinstance(x, torch.Tensor) else x for x in call.operands]
    for position in positions:
        operands[position].requires_grad_()
    with torch.enable_grad():
        result = call.prim.reference(*operands, **call.params)
    return list(torch.autograd.grad(result, [operands[p] for p in positions], weights,
                                    allow_unused=True, materialize_grads=True))  # fmt: skip


@pytest.mark.parametrize("name", [name for name in RULED if not name.startswith(NO_AUTOGRAD)])
def test_rules_agree_with_autograd(name):
    for call in calls_of(OPSET[name]):
        if name in OVERWRITING and not call.params.get("accumulate"):
            continue
        result = call.prim(*call.operands, **call.params)
        if not any(call.operands[p].numel() for p in differentiable(call)):
            continue
        weights = torch.linspace(0.5, 1.5, result.numel()).double().reshape(result.shape)
        positions = [*differentiable(call)]
        wanted = [p in positions for p in range(len(call.operands))]
        found = vjp(call.prim, weights, result, call.operands, call.params, wanted)
        for position, expected in zip(positions, gradients_by_autograd(call, weights)):
            torch.testing.assert_close(found[position], expected, rtol=1e-9, atol=1e-11)


def test_overwritten_values_have_no_gradient():
    a, values = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    index = torch.tensor([1, 1, 0])
    params = {"dims": (0,), "accumulate": False}
    result = prims.index_put(a, values, index, **params)
    assert result.tolist() == [3, 2, 0]
    of_a, of_values, of_index = vjp(prims.index_put, torch.tensor([5.0, 6.0, 7.0]), result,
                                    (a, values, index), params)  # fmt: skip
    assert of_a.tolist() == [0, 0, 7] and of_values.tolist() == [0, 6, 5] and of_index is None


def test_products_are_exact_where_factors_are_zero():
    g, a = torch.ones(4), torch.tensor([2.0, 0.0, 3.0, 0.0])
    assert vjp(prims.prod, g.sum(), a.prod(), (a,), {"dims": (0,)})[0].tolist() == [0, 0, 0, 0]
    a[3] = 4.0
    assert vjp(prims.prod, torch.tensor(1.0), a.prod(), (a,), {"dims": (0,)})[0].tolist() == [
        0, 24, 0, 0,
    ]  # fmt: skip
    scanned = vjp(prims.cumprod, g, prims.cumprod(a, dim=0), (a,), {"dim": 0})[0]
    assert scanned.tolist() == [1, 2 + 6 + 24, 0, 0]


def test_numbers_integers_and_unwanted_operands_get_none():
    a, g = torch.tensor([1.0, 2.0]), torch.ones(2)
    assert vjp(prims.mul, g, a * 3, (a, 3))[1] is None
    assert vjp(prims.mul, g, a * a, (a, a), wanted=(False, True))[0] is None
    assert vjp(prims.gather, g, a, (a, torch.tensor([0, 1])), {"dim": 0})[1] is None
    with pytest.raises(PrimError, match="1 entries of wanted, 2 operands"):
        vjp(prims.mul, g, a * a, (a, a), wanted=(True,))


@pytest.mark.parametrize(
    ("prim", "operands", "params", "message"),
    [
        (prims.airy_ai, (1,), {}, "airy_ai.*operand 0.*no prim computes it"),
        (prims.zeta, (1, 1), {}, r"zeta\(a, b\): operand 0.*no prim computes it"),
        (prims.eq, (1, 1), {}, "eq.*the result is bool"),
        (prims.argmax, (1,), {"dim": 0}, "argmax.*a position"),
        (prims.bitcast, (1,), {"dtype": torch.int32}, "bitcast.*bits"),
        (prims.convert, (1,), {"dtype": torch.int32}, "convert: a result of torch.int32"),
    ],
)
def test_missing_derivatives_are_named(prim, operands, params, message):
    operands = tuple(torch.ones(2) for _ in operands)
    result = prim(*operands, **params)
    with pytest.raises(DerivativeError, match=message):
        vjp(prim, torch.ones(result.shape), result, operands, params)


def test_complex_and_extern_operands_are_refused():
    a = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(DerivativeError, match="no complex gradients"):
        vjp(prims.flip, a, a, (a,), {"dims": (0,)})
    matrix = torch.ones(2, 2)
    with pytest.raises(DerivativeError, match="aotgrad differentiates"):
        vjp(prims.mm, matrix, matrix, (matrix, matrix))


def test_a_second_rule_or_an_unknown_operand_is_an_error():
    with pytest.raises(PrimError, match="there is a derivative for operand a already"):
        derive(prims.exp, "a", "g", lambda g, y, a: g)
    with pytest.raises(PrimError, match="has no operand x"):
        derive(prims.exp, "x", "g", lambda g, y, a: g)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_dtypes_add_up_in_float32(dtype):
    a = torch.ones(1, dtype=dtype)
    g = torch.full((4096,), 0.1, dtype=dtype)
    params = {"shape": (4096,), "dims": (0,)}
    (found,) = vjp(prims.broadcast_in_dim, g, g, (a,), params)
    assert found.dtype is dtype and found.item() == g.float().sum().to(dtype).item()


@pytest.mark.parametrize("name", RULED)
def test_rules_build_graphs(name):
    """In a graph the rules give what they give on tensors."""
    call = max(calls_of(OPSET[name]), key=lambda call: len([*differentiable(call)]))
    result = call.prim(*call.operands, **call.params)
    wanted = [p in set(differentiable(call)) for p in range(len(call.operands))]
    given = (torch.ones_like(result), result, *call.operands)
    builder, graph = GraphBuilder(fast=False), fx.Graph()
    values = [
        builder.input(graph.placeholder(f"x{i}"), TensorMeta.from_tensor(x))
        if isinstance(x, torch.Tensor) else x
        for i, x in enumerate(given)
    ]  # fmt: skip
    with reading_with(builder):
        traced = vjp(call.prim, values[0], values[1], values[2:], call.params, wanted)
    outputs = [x for x in traced if x is not None]
    module = builder.finish(torch.nn.Module(), outputs, graph.output(()), ())
    found = module(*(x for x in given if isinstance(x, torch.Tensor)))
    expected = vjp(call.prim, given[0], result, call.operands, call.params, wanted)
    for actual, wished in zip(found, (x for x in expected if x is not None), strict=True):
        torch.testing.assert_close(actual, wished, rtol=1e-14, atol=1e-14)


SHAPED = ("add", "where", "broadcast_in_dim", "reshape", "permute", "slice", "flip", "pad", "cat",
          "window", "index", "index_put", "gather", "scatter", "scatter_add", "sum", "prod",
          "cumsum", "cumprod")  # fmt: skip


@given(st.sampled_from(SHAPED).flatmap(prim_calls))
def test_gradients_have_the_shape_of_their_operand(drawn):
    operands = tuple(
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in drawn.operands
    )
    call = Call(drawn.prim, operands, drawn.params)
    if (
        any(True for _ in differentiable(call))
        and sum(x.numel() for x in operands if isinstance(x, torch.Tensor)) < 40
    ):
        check_call(call)


def test_symbolic_sizes_are_not_guarded():
    rows, columns = symbolic_size("r", 5), symbolic_size("c", 3)
    a = contiguous((rows, columns), torch.float64, torch.device("cpu"))
    calls: list[tuple[Any, dict[str, Any]]] = [
        (prims.broadcast_in_dim, {"shape": (2, rows, columns), "dims": (1, 2)}),
        (prims.reshape, {"shape": (rows * columns,)}),
        (prims.slice, {"dim": 0, "start": 1, "stop": rows, "step": 1}),
        (prims.slice, {"dim": 0, "start": 1, "stop": rows, "step": 2}),
        (prims.pad, {"low": (1, -1), "high": (0, 2), "value": 0}),
        (prims.window, {"dim": 0, "size": 2, "step": 1}),
        (prims.prod, {"dims": (0,)}),
        (prims.cumprod, {"dim": 1}),
    ]
    with reading_with(MetaReading()):
        for prim, params in calls:
            result = prim(a, **params)
            (gradient,) = vjp(prim, result, result, (a,), params)
            hints = [size if isinstance(size, int) else size.node.hint for size in gradient.shape]
            assert hints == [5, 3], prim
        gradient, none = vjp(prims.pow, a, a, (a, columns))  # a symbolic exponent
        assert gradient.dtype is torch.float64 and none is None


def test_command_prints_a_score():
    command = [sys.executable, "-m", "primops.testing", "derivatives", "exp", "gather"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "2 prims, " in done.stdout, done.stdout + done.stderr


def test_a_wrong_rule_fails(monkeypatch, capsys):
    from primops.derivatives import Derivative
    from primops.testing.derivatives import main

    wrong = Derivative("g", lambda g, y, a: g)
    monkeypatch.setitem(DERIVATIVES[prims.exp], "a", wrong)
    assert main(["exp"]) == 1
    assert "exp, operand 0" in capsys.readouterr().out
    assert spaced(0, (3,)).dtype is torch.float64
