"""Softmax, layer, group and RMS normalisation, and their derivatives. Batch normalisation has a
module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from primops import prims
from primops.decompositions.reduction import count, moments
from primops.meta import Size
from primops.operand import Tensor, broadcast_to, kept, round_to, spread, to_dtype, widen
from primops.promotion import HALF_DTYPES, compute_dtype
from primops.registry import DecompositionTable
from primops.shapes import is_empty, quotient, wrap_dim

rules = DecompositionTable()
INF = float("inf")


# Softmax
# --------------------------------------------------------------------------------------------------


def _shifted(
    a: Tensor, dim: int, half_to_float: bool | torch.dtype | None
) -> tuple[Tensor, tuple[int, ...], torch.dtype]:
    """``x - max(x)`` along dim, so that the largest exponent is 0; the dims to sum over, none for a
    scalar or an empty tensor; the result's dtype.
    """
    dtype = half_to_float
    if not isinstance(dtype, torch.dtype):
        dtype = torch.float32 if half_to_float else a.dtype
    wide = to_dtype(a, compute_dtype(dtype))
    if a.ndim == 0 or is_empty(a.shape):
        return prims.sub(wide, wide), (), dtype
    dims = (wrap_dim(dim, a.ndim),)
    return prims.sub(wide, spread(prims.amax(wide, dims=dims), wide.shape, dims)), dims, dtype


@rules.register("_softmax", "softmax.int")
def softmax(self: Tensor, dim: int, half_to_float: bool | torch.dtype | None = False) -> Tensor:
    """``exp(x) / sum(exp(x))`` along dim."""
    shifted, dims, dtype = _shifted(self, dim, half_to_float)
    power = prims.exp(shifted)
    if dims:
        power = prims.div(power, spread(prims.sum(power, dims=dims), power.shape, dims))
    return round_to(power, dtype)


@rules.register("_safe_softmax")
def safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """``softmax`` with 0 for rows that are -inf throughout."""
    result = softmax(self, dim, dtype)
    if self.ndim == 0 or is_empty(self.shape):
        return result
    dim = wrap_dim(dim, self.ndim)
    masked = prims.all(prims.eq(widen(self), -INF), dims=(dim,))
    return prims.where(spread(masked, self.shape, (dim,)), 0, result)


@rules.register("_log_softmax", "log_softmax.int")
def log_softmax(self: Tensor, dim: int, half_to_float: bool | torch.dtype | None = False) -> Tensor:
    """``x - log(sum(exp(x)))`` along dim."""
    shifted, dims, dtype = _shifted(self, dim, half_to_float)
    if dims:
        total = prims.log(prims.sum(prims.exp(shifted), dims=dims))
        shifted = prims.sub(shifted, spread(total, shifted.shape, dims))
    return round_to(shifted, dtype)


@rules.register("_softmax_backward_data")
def softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``(grad - sum(grad * y)) * y``."""
    grad, y = widen(grad_output), widen(output)
    dim = wrap_dim(dim, y.ndim)
    product = prims.mul(grad, y)
    if y.ndim == 0:
        return round_to(prims.sub(product, product), input_dtype)
    total = spread(prims.sum(product, dims=(dim,)), y.shape, (dim,))
    return round_to(prims.mul(prims.sub(grad, total), y), input_dtype)


@rules.register("_log_softmax_backward_data")
def log_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``grad - exp(y) * sum(grad)``."""
    grad, y = widen(grad_output), widen(output)
    dim = wrap_dim(dim, y.ndim)
    total = grad if y.ndim == 0 else spread(prims.sum(grad, dims=(dim,)), y.shape, (dim,))
    return round_to(prims.sub(grad, prims.mul(prims.exp(y), total)), input_dtype)


# Layer normalisation
# --------------------------------------------------------------------------------------------------


def statistics_dtype(*operands: Tensor | None) -> torch.dtype:
    """Dtype of saved mean and rstd: the input's on the CPU unless the parameters are wider, else
    the computing dtype.
    """
    x, *parameters = operands
    assert x is not None
    mixed = any(p is not None and p.dtype is not x.dtype for p in parameters)
    return x.dtype if x.device.type == "cpu" and not mixed else compute_dtype(x.dtype)


def _inner(a: Tensor, normalized: Sequence[Size]) -> tuple[int, ...]:
    return tuple(range(a.ndim - len(normalized), a.ndim))


def scale_shift(
    a: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Sequence[int]
) -> Tensor:
    """``a * weight + bias`` with parameters that lie along ``dims``, in the dtype of ``a``."""
    for parameter, prim in ((weight, prims.mul), (bias, prims.add)):
        if parameter is not None:
            wide = to_dtype(parameter, a.dtype)
            a = prim(a, prims.broadcast_in_dim(wide, shape=a.shape, dims=tuple(dims)))
    return a


def normalized(
    wide: Tensor, average: Tensor, variance: Tensor, eps: float, dims: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """``(x - mean) / deviation`` with statistics over ``dims``, and 1 / deviation."""
    rstd = prims.rsqrt(prims.add(variance, eps))
    centred = prims.sub(wide, spread(average, wide.shape, dims))
    return prims.mul(centred, spread(rstd, wide.shape, dims)), rstd


def _input_gradient(
    grad: Tensor, normal: Tensor, inverse: Tensor, dims: Sequence[int], centred: bool = True
) -> Tensor:
    """The gradient of what was normalised over ``dims``: less its mean (if that was subtracted) and
    its component along ``normal``, times 1 / deviation.
    """
    size = count(grad, dims)
    first = prims.div(prims.sum(grad, dims=dims), size) if centred else None
    second = prims.div(prims.sum(prims.mul(grad, normal), dims=dims), size)
    inner = grad if first is None else prims.sub(grad, spread(first, grad.shape, dims))
    inner = prims.sub(inner, prims.mul(normal, spread(second, grad.shape, dims)))
    return prims.mul(inner, inverse)


@rules.register("native_layer_norm", auxiliary=(1, 2))
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[Size],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over the last dims; also mean and 1 / deviation."""
    wide = widen(input)
    dims = _inner(input, normalized_shape)
    variance, average = moments(wide, dims, 0)
    normal, rstd = normalized(wide, average, variance, eps, dims)
    result = scale_shift(normal, weight, bias, dims)
    saved = statistics_dtype(input, weight, bias)
    average, rstd = (round_to(kept(x, dims), saved) for x in (average, rstd))
    return round_to(result, input.dtype), average, rstd


@rules.register("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[Size], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input, weight and bias as far as ``output_mask`` asks."""
    grad, wide = widen(grad_out), widen(input)
    dims = _inner(input, normalized_shape)
    outer = tuple(range(dims[0])) if dims else ()
    centred = prims.sub(wide, broadcast_to(to_dtype(mean, wide.dtype), wide.shape))
    inverse = broadcast_to(to_dtype(rstd, wide.dtype), wide.shape)
    normal = prims.mul(centred, inverse)
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        scaled = scale_shift(grad, weight, None, dims)
        results[0] = round_to(_input_gradient(scaled, normal, inverse, dims), input.dtype)
    if output_mask[1] and weight is not None:
        results[1] = round_to(prims.sum(prims.mul(grad, normal), dims=outer), weight.dtype)
    if output_mask[2] and bias is not None:
        results[2] = round_to(prims.sum(grad, dims=outer), bias.dtype)
    return results[0], results[1], results[2]


@rules.register("rms_norm")
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[Size],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``x / sqrt(mean(x * x) + eps) * weight``."""
    return fused_rms_norm(input, normalized_shape, weight, eps)[0]


@rules.register("_fused_rms_norm", auxiliary=(1,))
def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[Size], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """``rms_norm`` and the factor by which rows were scaled."""
    wide = widen(input)
    dims = _inner(input, normalized_shape)
    square = prims.div(prims.sum(prims.mul(wide, wide), dims=dims), count(wide, dims))
    # Without eps eager takes the machine epsilon of the dtype that it computes in.
    rstd = prims.rsqrt(prims.add(square, torch.finfo(wide.dtype).eps if eps is None else eps))
    result = scale_shift(prims.mul(wide, spread(rstd, wide.shape, dims)), weight, None, dims)
    return round_to(result, input.dtype), kept(rstd, dims)


@rules.register("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sequence[Size], rstd: Tensor,
    weight: Tensor | None, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input and weight as far as ``output_mask`` asks."""
    grad, wide = widen(grad_out), widen(input)
    dims = _inner(input, normalized_shape)
    inverse = broadcast_to(to_dtype(rstd, wide.dtype), wide.shape)
    normal = prims.mul(wide, inverse)
    grad_input = grad_weight = None
    if output_mask[0]:
        scaled = scale_shift(grad, weight, None, dims)
        grad_input = _input_gradient(scaled, normal, inverse, dims, centred=False)
        grad_input = round_to(grad_input, input.dtype)
    if output_mask[1] and weight is not None:
        total = prims.sum(prims.mul(grad, normal), dims=tuple(range(dims[0])))
        grad_weight = round_to(total, weight.dtype)
    return grad_input, grad_weight


# Group normalisation
# --------------------------------------------------------------------------------------------------


@rules.register("native_group_norm", auxiliary=(1, 2))
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over groups of channels; also mean and 1 / deviation per group."""
    grouped = prims.reshape(widen(input), shape=(N, group, quotient(C, group) * HxW))
    variance, average = moments(grouped, (2,), 0)
    normal, rstd = normalized(grouped, average, variance, eps, (2,))
    normal = prims.reshape(normal, shape=(N, C, HxW))
    result = prims.reshape(scale_shift(normal, weight, bias, (1,)), shape=input.shape)
    saved = statistics_dtype(input, weight, bias)
    return round_to(result, input.dtype), round_to(average, saved), round_to(rstd, saved)


@rules.register("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: Size,
    C: Size, HxW: Size, group: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input, weight and bias as far as ``output_mask`` asks."""
    wide_dtype = compute_dtype(input.dtype)
    grad = prims.reshape(widen(grad_out), shape=(N, C, HxW))
    shape = (N, group, quotient(C, group) * HxW)
    grouped = prims.reshape(widen(input), shape=shape)
    average, inverse = (
        prims.reshape(to_dtype(x, wide_dtype), shape=(N, group)) for x in (mean, rstd)
    )
    inverse = spread(inverse, shape, (2,))
    normal = prims.mul(prims.sub(grouped, spread(average, shape, (2,))), inverse)
    by_channel = prims.reshape(normal, shape=(N, C, HxW))
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        scaled = prims.reshape(scale_shift(grad, weight, None, (1,)), shape=shape)
        inner = _input_gradient(scaled, normal, inverse, (2,))
        results[0] = round_to(prims.reshape(inner, shape=input.shape), input.dtype)
    parameter_dtype = input.dtype if weight is None or weight.dtype in HALF_DTYPES else weight.dtype
    if output_mask[1]:
        results[1] = round_to(prims.sum(prims.mul(grad, by_channel), dims=(0, 2)), parameter_dtype)
    if output_mask[2]:
        results[2] = round_to(prims.sum(grad, dims=(0, 2)), parameter_dtype)
    return results[0], results[1], results[2]
