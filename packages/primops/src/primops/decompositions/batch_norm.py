"""Batch normalisation in all its operator variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from primops import prims
from primops.decompositions.normalization import normalized, scale_shift
from primops.decompositions.reduction import count, moments
from primops.operand import Tensor, full, round_to, spread, to_dtype, widen
from primops.promotion import compute_dtype
from primops.registry import DecompositionTable

rules = DecompositionTable()
CHANNEL = (1,)


class BatchNorm(NamedTuple):
    """Everything that one of the operators returns."""

    output: Tensor
    mean: Tensor
    rstd: Tensor
    reserve: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None


ARGUMENTS = tuple("input weight bias running_mean running_var training momentum eps".split())


def _other_dims(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


def _empty(input: Tensor, dtype: torch.dtype) -> Tensor:
    return full((0,), 0, dtype, input.device)


def _update(running: Tensor | None, batch: Tensor, momentum: float) -> Tensor | None:
    if running is None:
        return None
    old = prims.mul(widen(running), 1 - momentum)
    return round_to(prims.add(old, prims.mul(to_dtype(batch, old.dtype), momentum)), running.dtype)


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> BatchNorm:  # fmt: skip
    """Per channel (dim 1): normalised by the batch (``training``) or by the running statistics.

    The batch's mean and 1 / deviation are empty in evaluation, and so is the reserve.
    """
    saved = saved_dtype(input, weight, bias, running_mean)
    wide = widen(input)
    dims = _other_dims(input.ndim)
    if training:
        variance, average = moments(wide, dims, 0)
        size = count(wide, dims)
        unbiased = prims.div(prims.mul(variance, size), size - 1)
        running_mean = _update(running_mean, average, momentum)
        running_var = _update(running_var, unbiased, momentum)
    else:
        assert running_mean is not None and running_var is not None
        average, variance = to_dtype(running_mean, wide.dtype), to_dtype(running_var, wide.dtype)
    normal, rstd = normalized(wide, average, variance, eps, dims)
    result = round_to(scale_shift(normal, weight, bias, CHANNEL), input.dtype)
    mean, rstd = (round_to(x, saved) if training else _empty(input, saved) for x in (average, rstd))
    reserve = _empty(input, torch.uint8)
    return BatchNorm(result, mean, rstd, reserve, running_mean, running_var)


def saved_dtype(input: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """Dtype of the saved statistics: the input's on the CPU unless a parameter is wider, else the
    computing dtype.
    """
    given = next((p.dtype for p in parameters if p is not None), input.dtype)
    return given if input.device.type == "cpu" else compute_dtype(input.dtype)


def _variant(names: str, results: str, **fixed: Any) -> None:
    """Registers operators that take ``ARGUMENTS`` but the ``fixed`` ones, and return ``results``
    after the output.
    """
    order = [name for name in ARGUMENTS if name not in fixed]
    auxiliary = tuple(range(1, 1 + len(results.split())))

    @rules.register(*names.split(), auxiliary=auxiliary)
    def rule(*args: Any, **named: Any) -> tuple[Tensor, ...]:
        found = batch_norm(**fixed, **dict(zip(order, args)), **named)
        return (found.output, *(getattr(found, name) for name in results.split()))


_variant("native_batch_norm _native_batch_norm_legit", "mean rstd")
_variant("cudnn_batch_norm", "mean rstd reserve")
_variant("_native_batch_norm_legit.no_stats", "mean rstd", running_mean=None, running_var=None)
_variant("_native_batch_norm_legit_no_training", "mean rstd", training=False)
_variant("_native_batch_norm_legit_functional", "mean rstd running_mean running_var")
_variant("_batch_norm_no_update", "mean rstd reserve", training=False)
_variant(
    "_batch_norm_with_update_functional",
    "mean rstd reserve running_mean running_var",
    training=True,
)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    training: bool,
    mask: Sequence[bool],
) -> Gradients:
    """Gradients of input, weight and bias from the statistics that the forward used."""
    grad, wide = widen(grad_out), widen(input)
    dims = _other_dims(input.ndim)
    shape = wide.shape
    mean, rstd = to_dtype(mean, wide.dtype), to_dtype(rstd, wide.dtype)
    normal = prims.mul(prims.sub(wide, spread(mean, shape, dims)), spread(rstd, shape, dims))
    sum_grad = prims.sum(grad, dims=dims)
    sum_normal = prims.sum(prims.mul(grad, normal), dims=dims)
    parameter_dtype = input.dtype if weight is None else weight.dtype
    grad_input = None
    if mask[0]:
        inner = grad
        if training:
            size = count(wide, dims)
            inner = prims.sub(inner, spread(prims.div(sum_grad, size), shape, dims))
            along_normal = spread(prims.div(sum_normal, size), shape, dims)
            inner = prims.sub(inner, prims.mul(normal, along_normal))
        factor = rstd if weight is None else prims.mul(rstd, to_dtype(weight, wide.dtype))
        grad_input = round_to(prims.mul(inner, spread(factor, shape, dims)), input.dtype)
    grad_weight = round_to(sum_normal, parameter_dtype) if mask[1] else None
    grad_bias = round_to(sum_grad, parameter_dtype) if mask[2] else None
    return grad_input, grad_weight, grad_bias


@rules.register("native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Tensor, input: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, save_mean: Tensor | None, save_invstd: Tensor | None, train: bool,
    eps: float, output_mask: Sequence[bool],
) -> Gradients:  # fmt: skip
    """Gradients of input, weight and bias."""
    mean, rstd = save_mean, save_invstd
    if not train:
        mean = running_mean
        rstd = prims.rsqrt(prims.add(widen(running_var), eps))
    return batch_norm_backward(grad_out, input, weight, mean, rstd, train, output_mask)


# the last is the reserve
rules.register("batch_norm_backward")(lambda *args: native_batch_norm_backward(*args[:10]))


@rules.register("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor, save_var: Tensor, epsilon: float, reserveSpace: Tensor,
) -> Gradients:  # fmt: skip
    """Gradients of input, weight and bias; cuDNN is called for training only."""
    return batch_norm_backward(
        grad_output, input, weight, save_mean, save_var, True, (True, True, True)
    )
