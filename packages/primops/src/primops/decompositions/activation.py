"""Activation functions and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from primops import prims
from primops.decompositions.elementary import sigmoid_body
from primops.derivatives import gradient_of
from primops.operand import (
    Scalar,
    Tensor,
    binary,
    can_hold,
    elementwise,
    pointwise,
    slice_dim,
    unary,
    wrapped,
)
from primops.promotion import is_integral, result_dtype
from primops.registry import DecompositionTable
from primops.shapes import concrete, wrap_dim

rules = DecompositionTable()

SQRT_HALF = math.sqrt(0.5)
GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
SIXTH = 0.1666666716337204  # of float32, which eager uses for float64 too
HALF_NORMAL = 1.0 / math.sqrt(2.0 * math.pi)


unary(rules, "relu", lambda a: prims.maximum(a, 0))
unary(rules, "relu6", lambda a: prims.minimum(prims.maximum(a, 0), 6))
binary(
    rules,
    "sigmoid_backward",
    lambda grad, y: prims.mul(grad, prims.mul(prims.sub(1, y), y)),
    only_floats=True,
)
binary(
    rules,
    "tanh_backward",
    lambda grad, y: gradient_of(prims.tanh, 0, grad, y, None),
    only_floats=True,
)
unary(rules, "silu", lambda a: prims.div(a, prims.add(prims.exp(prims.neg(a)), 1)))


@pointwise(rules, "silu_backward")
def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Derivative of ``x * sigmoid(x)``."""
    s = sigmoid_body(self)
    slope = prims.mul(s, prims.add(prims.mul(self, prims.sub(1, s)), 1))
    return prims.mul(grad_output, slope)


@rules.register("threshold_backward")
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Scalar) -> Tensor:
    """The gradient where self > threshold."""
    dtype = result_dtype(grad_output, self)
    if dtype is torch.bool or not can_hold(dtype, threshold):
        return NotImplemented
    limit = wrapped(threshold, dtype)
    return elementwise(lambda grad, a: prims.where(prims.le(a, limit), 0, grad), grad_output, self)


def _gelu_inner(a: Tensor) -> Tensor:
    cube = prims.mul(prims.mul(a, a), a)
    return prims.tanh(prims.mul(prims.add(a, prims.mul(cube, GELU_CUBIC)), GELU_SCALE))


@pointwise(rules, "gelu")
def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    """``x * Phi(x)``, or its tanh approximation."""
    inner = _gelu_inner(self) if approximate == "tanh" else prims.erf(prims.mul(self, SQRT_HALF))
    return prims.mul(prims.mul(self, 0.5), prims.add(inner, 1))


@pointwise(rules, "gelu_backward")
def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    """Derivative of ``gelu``."""
    a = self
    if approximate == "tanh":
        inner = _gelu_inner(a)
        left = prims.mul(prims.add(inner, 1), 0.5)
        slope = prims.mul(prims.add(prims.mul(prims.mul(a, a), 3 * GELU_CUBIC), 1), GELU_SCALE)
        sech = prims.mul(prims.mul(a, 0.5), prims.sub(1, prims.mul(inner, inner)))
        return prims.mul(grad_output, prims.add(left, prims.mul(sech, slope)))
    cdf = prims.mul(prims.add(prims.erf(prims.mul(a, SQRT_HALF)), 1), 0.5)
    pdf = prims.mul(prims.exp(prims.mul(prims.mul(a, a), -0.5)), HALF_NORMAL)
    return prims.mul(grad_output, prims.add(cdf, prims.mul(a, pdf)))


def _leak(value: Tensor, a: Tensor, slope: Scalar | Tensor) -> Tensor:
    """``value`` where a is positive, else ``slope * value``."""
    return prims.where(prims.gt(a, 0), value, prims.mul(value, slope))


@pointwise(rules, "leaky_relu", only_floats=True)
def leaky_relu(self: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    """x for positive x, else ``negative_slope * x``."""
    return _leak(self, self, negative_slope)


@pointwise(rules, "leaky_relu_backward", only_floats=True)
def leaky_relu_backward(
    grad_output: Tensor, self: Tensor, negative_slope: Scalar, self_is_result: bool
) -> Tensor:
    """Derivative of ``leaky_relu`` (the sign of result and input agree)."""
    return _leak(grad_output, self, negative_slope)


binary(rules, "_prelu_kernel", lambda a, slope: _leak(a, a, slope))


@rules.register("_prelu_kernel_backward")
def prelu_kernel_backward(
    grad_output: Tensor, self: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of input and (not yet reduced) slope."""
    grad_self = elementwise(_leak, grad_output, self, weight)
    grad_weight = elementwise(
        lambda g, a: prims.where(prims.gt(a, 0), 0, prims.mul(g, a)), grad_output, self
    )
    return grad_self, grad_weight


@pointwise(rules, "elu")
def elu(self: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Tensor:
    """``alpha * scale * expm1(input_scale * x)`` for negative x, else ``scale * x``."""
    negative = prims.mul(prims.expm1(prims.mul(self, input_scale)), alpha * scale)
    return prims.where(prims.lt(self, 0), negative, prims.mul(self, scale))


@rules.register("elu_backward")
def elu_backward(
    grad_output: Tensor,
    alpha: Scalar,
    scale: Scalar,
    input_scale: Scalar,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """Derivative of ``elu`` from its input or its result."""
    negative_scale = alpha * scale

    def body(grad: Tensor, a: Tensor) -> Tensor:
        if is_result:
            slope = prims.mul(prims.add(a, negative_scale), input_scale)
        else:
            slope = prims.mul(prims.exp(prims.mul(a, input_scale)), negative_scale * input_scale)
        return prims.mul(grad, prims.where(prims.le(a, 0), slope, scale))  # NaN counts as positive

    return elementwise(body, grad_output, self_or_result, only_floats=True)


@rules.register("celu")
def celu(self: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """``elu`` with a continuous derivative."""
    return elu(self, alpha, 1.0, 1.0 / alpha)


@rules.register("selu")
def selu(self: Tensor) -> Tensor:
    """``elu`` with the constants that keep unit variance."""
    return elu(self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@rules.register("hardtanh")
def hardtanh(self: Tensor, min_val: Scalar = -1, max_val: Scalar = 1) -> Tensor:
    """x clamped."""
    if is_integral(self.dtype):
        return NotImplemented
    return elementwise(lambda a: prims.minimum(prims.maximum(a, min_val), max_val), self)


@pointwise(rules, "hardtanh_backward", only_floats=True)
def hardtanh_backward(
    grad_output: Tensor, self: Tensor, min_val: Scalar, max_val: Scalar
) -> Tensor:
    """The gradient inside the limits."""
    outside = prims.bitwise_or(prims.le(self, min_val), prims.ge(self, max_val))
    return prims.where(outside, 0, grad_output)


def _ramp(a: Tensor) -> Tensor:
    """``clamp(x + 3, 0, 6)``."""
    return prims.minimum(prims.maximum(prims.add(a, 3), 0), 6)


unary(rules, "hardsigmoid", lambda a: prims.div(_ramp(a), 6))
unary(rules, "hardswish", lambda a: prims.div(prims.mul(a, _ramp(a)), 6))


@pointwise(rules, "hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """A sixth of the gradient inside (-3, 3)."""
    inside = prims.bitwise_and(prims.gt(self, -3), prims.lt(self, 3))
    return prims.where(inside, prims.mul(grad_output, SIXTH), 0)


@pointwise(rules, "hardswish_backward")
def hardswish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Derivative of ``x * clamp(x + 3, 0, 6) / 6``."""
    middle = prims.mul(grad_output, prims.add(prims.div(self, 3), 0.5))
    return prims.where(prims.le(self, -3), 0, prims.where(prims.lt(self, 3), middle, grad_output))


@pointwise(rules, "softplus")
def softplus(self: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Tensor:
    """``log1p(exp(beta * x)) / beta``, x itself above the threshold."""
    scaled = prims.mul(self, beta)
    is_large = prims.gt(scaled, threshold)
    return prims.where(is_large, self, prims.div(prims.log1p(prims.exp(scaled)), beta))


@pointwise(rules, "softplus_backward")
def softplus_backward(grad_output: Tensor, self: Tensor, beta: Scalar, threshold: Scalar) -> Tensor:
    """The gradient times ``sigmoid(beta * x)``."""
    scaled = prims.mul(self, beta)
    z, is_large = prims.exp(scaled), prims.gt(scaled, threshold)
    slope = prims.div(prims.mul(grad_output, z), prims.add(z, 1))
    return prims.where(is_large, grad_output, slope)


def _log_sigmoid(a: Tensor) -> tuple[Tensor, Tensor]:
    z = prims.exp(prims.neg(prims.abs(a)))
    return prims.sub(prims.minimum(a, 0), prims.log1p(z)), z


@rules.register("log_sigmoid_forward")
def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    """``log(sigmoid(x))`` and, on the CPU, ``exp(-|x|)`` for the derivative (elsewhere an empty
    tensor).
    """
    result = elementwise(lambda a: _log_sigmoid(a)[0], self)
    if self.device.type != "cpu":
        return result, prims.full(shape=(0,), value=0.0, dtype=self.dtype, device=self.device)
    return result, elementwise(lambda a: _log_sigmoid(a)[1], self)


@pointwise(rules, "log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Any) -> Tensor:
    """The gradient times ``1 - sigmoid(x)``."""
    z = prims.exp(prims.neg(prims.abs(self)))
    ratio = prims.div(z, prims.add(z, 1))
    slope = prims.where(prims.lt(self, 0), prims.sub(1, ratio), ratio)
    return prims.mul(grad_output, slope)


def _mish_gate(a: Tensor) -> Tensor:
    return prims.tanh(prims.log1p(prims.exp(a)))


unary(rules, "mish", lambda a: prims.mul(a, _mish_gate(a)))


@pointwise(rules, "mish_backward")
def mish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Derivative of ``x * tanh(softplus(x))``."""
    gate = _mish_gate(self)
    slope = prims.mul(prims.mul(self, sigmoid_body(self)), prims.sub(1, prims.mul(gate, gate)))
    return prims.mul(grad_output, prims.add(gate, slope))


def _is_small(a: Tensor, limit: Scalar) -> Tensor:
    """Whether elements are in [-limit, limit]."""
    return prims.bitwise_and(prims.ge(a, -limit), prims.le(a, limit))


@pointwise(rules, "hardshrink", only_floats=True, jumps=True)
def hardshrink(self: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x outside [-lambd, lambd], else 0."""
    return prims.where(_is_small(self, lambd), 0, self)


@pointwise(rules, "hardshrink_backward", "softshrink_backward", only_floats=True, jumps=True)
def shrink_backward(grad_output: Tensor, self: Tensor, lambd: Scalar) -> Tensor:
    """The gradient outside [-lambd, lambd]."""
    return prims.where(_is_small(self, lambd), 0, grad_output)


@pointwise(rules, "softshrink", only_floats=True)
def softshrink(self: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x moved toward 0 by lambd."""
    below = prims.where(prims.lt(self, -lambd), prims.add(self, lambd), prims.mul(self, 0))
    return prims.where(prims.gt(self, lambd), prims.sub(self, lambd), below)


def _halves(a: Tensor, dim: int) -> tuple[Tensor, Tensor, int]:
    dim = wrap_dim(dim, a.ndim)
    size = concrete(a.shape[dim])
    return slice_dim(a, dim, 0, size // 2), slice_dim(a, dim, size // 2, size), dim


@rules.register("glu")
def glu(self: Tensor, dim: int = -1) -> Tensor:
    """First half times the sigmoid of the second half."""
    first, second, _ = _halves(self, dim)
    return elementwise(lambda a, b: prims.mul(a, sigmoid_body(b)), first, second)


@rules.register("glu_backward")
def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradients of both halves."""
    first, second, dim = _halves(self, dim)

    def of_second(grad: Tensor, a: Tensor, b: Tensor) -> Tensor:
        s = sigmoid_body(b)
        return prims.mul(prims.mul(prims.mul(prims.sub(1, s), s), grad), a)

    grad_first = elementwise(lambda grad, b: prims.mul(sigmoid_body(b), grad), grad_output, second)
    return prims.cat(grad_first, elementwise(of_second, grad_output, first, second), dim=dim)


@pointwise(rules, "logit_backward", steps=True)
def logit_backward(
    grad_output: Tensor, self: Tensor, eps: float | None = None, *, step: Callable[..., Tensor]
) -> Tensor:
    """``grad / (x * (1 - x))`` inside the limits."""
    low, high, other = (0.0, 1.0, math.nan) if eps is None or eps < 0 else (eps, 1.0 - eps, 0.0)
    product = step(prims.mul(self, step(prims.sub(1, self))))
    if self.device.type == "cpu":  # CUDA's kernel divides by -0.0
        product = prims.where(prims.eq(product, 0), 0.0, product)
    outside = prims.bitwise_or(prims.lt(self, low), prims.gt(self, high))
    return prims.where(outside, other, prims.div(grad_output, product))
