"""Losses and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from primops import prims
from primops.meta import Size
from primops.operand import (
    Tensor,
    along,
    broadcast,
    broadcast_to,
    elementwise,
    full,
    iota,
    reduce,
    round_to,
    rounded,
    spread,
    to_dtype,
    unsqueeze,
    widen,
)
from primops.promotion import compute_dtype, result_dtype
from primops.registry import DecompositionTable, Rule

rules = DecompositionTable()
NONE, MEAN, SUM = 0, 1, 2
Step = Callable[[Tensor], Tensor]


def reduced(losses: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    """All losses, their mean, or their sum, in ``dtype``."""
    if reduction == NONE:
        return round_to(losses, dtype)
    total = reduce(prims.sum, losses, None, False)
    return round_to(prims.div(total, losses.numel()) if reduction == MEAN else total, dtype)


def _wide(*operands: Tensor) -> tuple[list[Tensor], torch.dtype]:
    """Operands in the computing dtype and in one shape, and the result's dtype."""
    dtype = result_dtype(*operands)
    return broadcast(*[to_dtype(x, compute_dtype(dtype)) for x in operands]), dtype


def _pairs(
    body: Callable[..., Tensor], reduction: int, *operands: Any, dtype: torch.dtype | None = None
) -> Tensor:
    """A loss that is a function of corresponding elements, by default of their common dtype."""
    wide, common = _wide(*operands)
    dtype = dtype or common
    return reduced(rounded(body(*wide), dtype), reduction, dtype)


def _pairs_backward(
    slope: Callable[..., Tensor], reduction: int, grad_output: Tensor, *operands: Tensor
) -> Tensor:
    """Gradient of the first operand, of its dtype: the incoming gradient times the slope (over the
    count, for a mean).
    """
    wide, common = _wide(*operands)
    grad = broadcast_to(to_dtype(grad_output, compute_dtype(common)), wide[0].shape)
    result = prims.mul(slope(*wide), grad)
    if reduction == MEAN:
        result = prims.div(result, wide[0].numel())
    return round_to(result, operands[0].dtype)


def _loss(name: str, *, steps: bool = False, own_dtype: bool = False) -> Callable[[Rule], Rule]:
    """Decorator for a loss of corresponding elements; its other arguments follow ``reduction`` in
    the operator. ``steps``: the first of them is a function that rounds a value to the result's
    dtype, as eager does between the steps of its computation. ``own_dtype``: the result has the
    first operand's dtype, whatever the target's is.
    """

    def add(body: Rule) -> Rule:
        @rules.register(name)
        def rule(
            self: Tensor, target: Tensor, reduction: int = MEAN, *more: Any, **options: Any
        ) -> Tensor:
            if steps:
                more = (partial(rounded, dtype=result_dtype(self, target)), *more)
            dtype = self.dtype if own_dtype else None
            pair = lambda a, b: body(a, b, *more, **options)  # noqa: E731
            return _pairs(pair, reduction, self, target, dtype=dtype)

        return rule

    return add


def _slope(name: str) -> Callable[[Rule], Rule]:
    """Decorator for the derivative of such a loss by its first operand."""

    def add(body: Rule) -> Rule:
        @rules.register(name)
        def rule(
            grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, *more: Any
        ) -> Tensor:
            return _pairs_backward(
                lambda a, b: body(a, b, *more), reduction, grad_output, self, target
            )

        return rule

    return add


@_loss("mse_loss", steps=True)
def mse_loss(a: Tensor, b: Tensor, step: Step) -> Tensor:
    """Squared difference."""
    difference = step(prims.sub(a, b))
    return prims.mul(difference, difference)


@_slope("mse_loss_backward")
def mse_loss_backward(a: Tensor, b: Tensor) -> Tensor:
    """Derivative of ``mse_loss``."""
    return prims.mul(prims.sub(a, b), 2.0)


@_loss("l1_loss")
def l1_loss(a: Tensor, b: Tensor) -> Tensor:
    """Absolute difference."""
    return prims.abs(prims.sub(a, b))


@_loss("smooth_l1_loss")
def smooth_l1_loss(a: Tensor, b: Tensor, beta: float = 1.0) -> Tensor:
    """Quadratic within beta, then linear."""
    z = prims.abs(prims.sub(a, b))
    if beta == 0:
        return z
    near = prims.div(prims.mul(prims.mul(z, 0.5), z), beta)
    return prims.where(prims.lt(z, beta), near, prims.sub(z, 0.5 * beta))


@_slope("smooth_l1_loss_backward")
def smooth_l1_loss_backward(a: Tensor, b: Tensor, beta: float) -> Tensor:
    """Derivative of ``smooth_l1_loss``."""
    difference = prims.sub(a, b)
    if beta == 0:
        return prims.sign(difference)
    is_far = prims.ge(prims.abs(difference), beta)
    return prims.where(is_far, prims.sign(difference), prims.div(difference, beta))


@_loss("huber_loss", steps=True, own_dtype=True)
def huber_loss(a: Tensor, b: Tensor, step: Step, delta: float = 1.0) -> Tensor:
    """Quadratic within delta, then linear; not divided by delta."""
    z = step(prims.abs(prims.sub(a, b)))
    far = prims.mul(step(prims.sub(z, 0.5 * delta)), delta)
    return prims.where(prims.le(z, delta), prims.mul(step(prims.mul(z, 0.5)), z), far)


@_slope("huber_loss_backward")
def huber_loss_backward(a: Tensor, b: Tensor, delta: float) -> Tensor:
    """Derivative of ``huber_loss``."""
    return prims.minimum(prims.maximum(prims.sub(a, b), -delta), delta)


def _weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return losses
    return prims.mul(losses, broadcast_to(to_dtype(weight, losses.dtype), losses.shape))


@rules.register("binary_cross_entropy")
def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """``-(y * log(x) + (1 - y) * log(1 - x))`` with logarithms of at least -100."""

    def body(a: Tensor, y: Tensor) -> Tensor:
        log_no = prims.maximum(prims.log1p(prims.neg(a)), -100.0)
        log_yes = prims.maximum(prims.log(a), -100.0)
        losses = prims.sub(prims.mul(prims.sub(y, 1), log_no), prims.mul(y, log_yes))
        return _weighted(losses, weight)

    return _pairs(body, reduction, self, target)


@rules.register("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Derivative of ``binary_cross_entropy``; the denominator is at least 1e-12."""

    def slope(a: Tensor, y: Tensor) -> Tensor:
        variance = prims.maximum(prims.mul(prims.sub(1, a), a), 1e-12)
        return _weighted(prims.div(prims.sub(a, y), variance), weight)

    return _pairs_backward(slope, reduction, grad_output, self, target)


def _log_sigmoid(a: Tensor) -> Tensor:
    return prims.sub(prims.minimum(a, 0), prims.log1p(prims.exp(prims.neg(prims.abs(a)))))


@rules.register("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """``binary_cross_entropy`` of ``sigmoid(x)``; eager composes it of operators, each of which
    rounds.
    """
    step = partial(rounded, dtype=result_dtype(self, target))

    def body(a: Tensor, y: Tensor) -> Tensor:
        left = step(prims.mul(step(prims.sub(1, y)), a))
        log_sigmoid = step(_log_sigmoid(a))
        if pos_weight is not None:
            extra = broadcast_to(to_dtype(pos_weight, a.dtype), a.shape)
            factor = step(prims.add(step(prims.mul(step(prims.sub(extra, 1)), y)), 1))
            log_sigmoid = step(prims.mul(log_sigmoid, factor))
        return _weighted(step(prims.sub(left, log_sigmoid)), weight)

    return _pairs(body, reduction, self, target)


@_loss("kl_div")
def kl_div(a: Tensor, y: Tensor, *, log_target: bool = False) -> Tensor:
    """``y * (log(y) - x)``, 0 for y = 0."""
    if log_target:
        return prims.mul(prims.exp(y), prims.sub(y, a))
    entropy = prims.where(prims.eq(y, 0), 0.0, prims.mul(y, prims.log(y)))
    return prims.sub(entropy, prims.mul(y, a))


@rules.register("soft_margin_loss")
def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """``log(1 + exp(-x * y))`` in the dtype of x; eager composes it of operators, each of which
    rounds.
    """
    product = elementwise(lambda a, y: prims.neg(prims.mul(a, y)), self, target)
    exponent = to_dtype(product, self.dtype)
    losses = elementwise(prims.log1p, elementwise(prims.exp, exponent))
    return reduced(widen(losses), reduction, losses.dtype)


@_slope("soft_margin_loss_backward")
def soft_margin_loss_backward(a: Tensor, y: Tensor) -> Tensor:
    """Derivative of ``soft_margin_loss``."""
    z = prims.exp(prims.neg(prims.mul(a, y)))
    return prims.div(prims.mul(prims.neg(y), z), prims.add(z, 1))


# Negative log likelihood
# --------------------------------------------------------------------------------------------------


def _class_dim(rank: int) -> int:
    return 0 if rank == 1 else 1


def _picked(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Targets with ignored ones replaced by class 0, and which ones count."""
    target = to_dtype(target, torch.int64)
    counts = prims.ne(target, ignore_index)
    return prims.where(counts, target, 0), counts


def _class_weights(
    weight: Tensor | None, safe: Tensor, counts: Tensor, dtype: torch.dtype
) -> Tensor:
    """The weight of every target, 0 for ignored ones."""
    if weight is None:
        return to_dtype(counts, dtype)
    return prims.where(counts, prims.index(to_dtype(weight, dtype), safe, dims=(0,)), 0)


@rules.register("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: Size
) -> tuple[Tensor, Tensor]:
    """``-weight[y] * x[y]`` and the sum of the weights; the mean divides by that."""
    wide = widen(self)
    dim = _class_dim(self.ndim)
    safe, counts = _picked(target, int(ignore_index))
    at = unsqueeze(safe, dim)
    chosen = prims.reshape(prims.gather(wide, at, dim=dim), shape=target.shape)
    weights = _class_weights(weight, safe, counts, wide.dtype)
    # An ignored element counts nothing even where the input is infinite.
    chosen = chosen if weight is None else prims.mul(chosen, weights)
    losses = prims.where(counts, prims.neg(chosen), 0)
    if reduction == NONE and target.ndim:
        return round_to(losses, self.dtype), full((), 0, self.dtype, self.device)
    total, weight_sum = (reduce(prims.sum, x, None, False) for x in (losses, weights))
    result = prims.div(total, weight_sum) if reduction == MEAN else total
    return round_to(result, self.dtype), round_to(weight_sum, self.dtype)


@rules.register("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int,
    ignore_index: Size, total_weight: Tensor,
) -> Tensor:  # fmt: skip
    """``-weight[y] * grad`` at the targets, 0 elsewhere."""
    wide = compute_dtype(self.dtype)
    dim = _class_dim(self.ndim)
    safe, counts = _picked(target, int(ignore_index))
    grad = to_dtype(grad_output, wide)
    if reduction == MEAN:
        grad = prims.div(grad, to_dtype(total_weight, wide))
    slope = prims.neg(broadcast_to(grad, target.shape))
    if weight is not None:
        slope = prims.mul(slope, _class_weights(weight, safe, counts, wide))
    slope = prims.where(counts, slope, 0)
    # Compared with every class: cheaper to fuse than a scatter into zeros.
    shape = self.shape
    classes = iota(shape[dim], torch.int64, self.device)
    hit = prims.eq(along(classes, shape, dim), spread(safe, shape, (dim,)))
    return round_to(prims.where(hit, spread(slope, shape, (dim,)), 0), self.dtype)
