"""Numbers beside tensors on the CPU: bitwise eager's, and refused where eager refuses them."""

from __future__ import annotations

import itertools
import math

import primops
import pytest
import torch
from primops.testing.trace import trace

aten = torch.ops.aten
OPERATORS = {
    "add": lambda x: x + 0.7,
    "sub": lambda x: x - 0.7,
    "rsub": lambda x: 0.7 - x,
    "mul": lambda x: x * 0.7,
    "div": lambda x: x / 0.7,
    "pow": lambda x: x.abs() ** 0.7,
    "remainder": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, 0.7),
    "eq": lambda x: x == 0.7,
    "lt": lambda x: x < 0.7,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_bitwise(name, dtype):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(1000), torch.full((8,), 0.7)]).to(dtype)
    made = primops.decompose(trace(OPERATORS[name], x), numerics="eager")
    (result,) = primops.evaluate(made, [x])
    assert torch.equal(result, OPERATORS[name](x))


NUMBERS = (0.5, -0.5, 1.7, -2.3, 1e20, -1e20, math.inf, math.nan, 300, -3, -300, True, 2)
ELEMENTWISE = {
    "threshold": lambda x, a: (aten.threshold.default, x, a, 7),
    "threshold value": lambda x, a: (aten.threshold.default, x, 1, a),
    "threshold_backward": lambda x, a: (aten.threshold_backward.default, x + x, x, a),
    "hardtanh": lambda x, a: (aten.hardtanh.default, x, a, 2),
    "hardtanh_backward": lambda x, a: (aten.hardtanh_backward.default, x, x, a, 2),
    "hardshrink": lambda x, a: (aten.hardshrink.default, x, a),
    "hardshrink_backward": lambda x, a: (aten.hardshrink_backward.default, x, x, a),
    "softshrink": lambda x, a: (aten.softshrink.default, x, abs(a)),
    "softshrink_backward": lambda x, a: (aten.softshrink_backward.default, x, x, a),
    "clamp": lambda x, a: (aten.clamp.default, x, -1, a),
    "clamp_min": lambda x, a: (aten.clamp_min.default, x, a),
    "clamp_max": lambda x, a: (aten.clamp_max.default, x, a),
    "leaky_relu": lambda x, a: (aten.leaky_relu.default, x, a),
    "leaky_relu_backward": lambda x, a: (aten.leaky_relu_backward.default, x, x, a, False),
    "elu_backward": lambda x, a: (aten.elu_backward.default, x, a, 1, 1, True, x),
    "sigmoid_backward": lambda x, a: (aten.sigmoid_backward.default, x, x),
    "tanh_backward": lambda x, a: (aten.tanh_backward.default, x, x),
    "lerp": lambda x, a: (aten.lerp.Scalar, x, x, a),
    "masked_fill": lambda x, a: (aten.masked_fill.Scalar, x, x > 0, a),
    "where": lambda x, a: (aten.where.ScalarOther, x > 0, x, a),
    "fill": lambda x, a: (aten.fill.Scalar, x, a),
    "full_like": lambda x, a: (aten.full_like.default, x, a),
}
DTYPES = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)
CHECKED = ("threshold", "threshold_backward", "clamp", "masked_fill", "where", "fill", "full_like")
CALLS = [*itertools.product(ELEMENTWISE, DTYPES), *((name, torch.float16) for name in CHECKED)]


@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_numbers_of_another_dtype(name, dtype):
    x = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 100]).to(dtype)
    for number in NUMBERS:
        op, *arguments = ELEMENTWISE[name](x, number)
        found = primops.DEFAULT.get(op)(*arguments)
        try:
            expected = op(*arguments)
        except (RuntimeError, NotImplementedError):
            assert found is NotImplemented, number
            continue
        if found is not NotImplemented:
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_threshold_backward_of_integers_truncates_the_threshold():
    x = torch.tensor([-1, 0, 1])
    (rule, op) = primops.DEFAULT.get(aten.threshold_backward.default), aten.threshold_backward
    for found in (rule(x + 5, x, -0.5), op(x + 5, x, -0.5)):
        assert found.tolist() == [0, 0, 6]
