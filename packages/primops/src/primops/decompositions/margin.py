"""Losses with margins between classes."""

from __future__ import annotations

from typing import Any

import torch

from primops import prims
from primops.decompositions.loss import MEAN, NONE, reduced
from primops.operand import (
    Scalar,
    Tensor,
    along,
    broadcast_to,
    flat,
    full_like,
    iota,
    round_to,
    spread,
    to_dtype,
    widen,
)
from primops.registry import DecompositionTable

rules = DecompositionTable()


def _rows(a: Tensor) -> Tensor:
    """(batch, classes), also for a single row."""
    return a if a.ndim == 2 else prims.reshape(a, shape=(1, a.numel()))


def _margins(self: Tensor, target: Tensor, margin: Scalar) -> tuple[Tensor, Tensor, Tensor]:
    """margin - x[target] + x of every class, which class is the target, and the target as a
    column.
    """
    x = _rows(widen(self))
    at = prims.reshape(target, shape=(x.shape[0], 1))
    own = broadcast_to(prims.gather(x, at, dim=1), x.shape)
    classes = along(iota(x.shape[1], torch.int64, x.device), x.shape, 1)
    return prims.add(prims.sub(margin, own), x), prims.eq(classes, broadcast_to(at, x.shape)), at


def _positive(z: Tensor) -> Tensor:
    """z where it is above 0, else 0; NaN is not above."""
    return prims.where(prims.gt(z, 0), z, 0)


def _weights(weight: Tensor | None, at: Tensor, like: Tensor) -> Tensor | None:
    if weight is None:
        return None
    picked = prims.index(to_dtype(weight, like.dtype), flat(at), dims=(0,))
    return along(picked, like.shape, 0)


@rules.register("multi_margin_loss")
def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: Scalar = 1,
    margin: Scalar = 1,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Mean over classes of ``max(0, margin - x[target] + x) ** p``, the target's own left out."""
    z, own, at = _margins(self, target, margin)
    z = _positive(z)
    z = prims.mul(z, z) if p == 2 else z
    scale = _weights(weight, at, z)
    z = z if scale is None else prims.mul(z, scale)
    losses = prims.div(prims.sum(prims.where(own, 0, z), dims=(1,)), z.shape[1])
    losses = prims.reshape(losses, shape=()) if target.ndim < 1 and reduction == NONE else losses
    return reduced(losses, reduction, self.dtype)


@rules.register("multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, p: Scalar, margin: Scalar,
    weight: Tensor | None = None, reduction: int = MEAN,
) -> Tensor:  # fmt: skip
    """Derivative of ``multi_margin_loss``."""
    z, own, at = _margins(self, target, margin)
    slope = prims.mul(z, 2.0) if p == 2 else full_like(z, 1)
    scale = _weights(weight, at, z)
    slope = slope if scale is None else prims.mul(slope, scale)
    counts = prims.bitwise_and(prims.gt(z, 0), prims.bitwise_not(own))
    each = prims.where(counts, prims.div(slope, z.shape[1]), 0)
    total = spread(prims.sum(each, dims=(1,)), z.shape, (1,))
    whole = prims.where(own, prims.neg(total), each)
    return _with_grad(whole, grad_output, self, reduction)


def _with_grad(slope: Tensor, grad_output: Tensor, self: Tensor, reduction: int) -> Tensor:
    grad = widen(grad_output)
    rows = slope.shape[0]
    grad = prims.broadcast_in_dim(grad, shape=slope.shape, dims=tuple(range(grad.ndim)))
    result = prims.mul(slope, grad)
    result = prims.div(result, rows) if reduction == MEAN else result
    return round_to(prims.reshape(result, shape=tuple(self.shape)), self.dtype)


def _labels(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets before the first -1 of a row: which, their classes (0 for the others), and per class
    whether it is one.
    """
    rows = _rows(target)
    ended = prims.cumsum(to_dtype(prims.lt(rows, 0), torch.int64), dim=1)
    valid = prims.eq(ended, 0)
    at = prims.where(valid, rows, 0)
    count = full_like(rows, 0, torch.int64)
    hits = prims.scatter_add(count, at, to_dtype(valid, torch.int64), dim=1)
    return valid, at, prims.gt(hits, 0)


def _pairwise(self: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Any, Any, Any]:
    """1 - x[target] + x for every (row, target, class), and where that counts: a valid target, a
    class that is none.
    """
    x = _rows(widen(self))
    valid, at, is_target = _labels(target)
    shape = (x.shape[0], at.shape[1], x.shape[1])
    own = prims.broadcast_in_dim(prims.gather(x, at, dim=1), shape=shape, dims=(0, 1))
    z = prims.add(prims.sub(1, own), prims.broadcast_in_dim(x, shape=shape, dims=(0, 2)))
    other = prims.bitwise_not(prims.broadcast_in_dim(is_target, shape=shape, dims=(0, 2)))
    counts = prims.bitwise_and(prims.broadcast_in_dim(valid, shape=shape, dims=(0, 1)), other)
    return z, counts, x, at, is_target


@rules.register("multilabel_margin_loss_forward")
def multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Mean over classes of ``max(0, 1 - x[target] + x)`` for every target and every other class;
    also which are targets.
    """
    z, counts, _, _, is_target = _pairwise(self, target)
    each = prims.where(counts, _positive(z), 0)
    losses = prims.div(prims.sum(each, dims=(1, 2)), z.shape[2])
    losses = prims.reshape(losses, shape=()) if target.ndim < 2 and reduction == NONE else losses
    flags = prims.reshape(to_dtype(is_target, self.dtype), shape=tuple(target.shape))
    return reduced(losses, reduction, self.dtype), flags


@rules.register("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Derivative of ``multilabel_margin_loss``."""
    z, counts, x, at, _ = _pairwise(self, target)
    active = to_dtype(prims.bitwise_and(counts, prims.gt(z, 0)), z.dtype)
    share = prims.div(active, z.shape[2])
    of_others = prims.sum(share, dims=(1,))
    zeros, lost = full_like(x, 0), prims.neg(prims.sum(share, dims=(2,)))
    of_targets = prims.scatter_add(zeros, at, lost, dim=1)
    return _with_grad(prims.add(of_others, of_targets), grad_output, self, reduction)
