"""Products of vectors and batches as matrix products, distances, weight normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.decompositions.arithmetic import times
from primops.decompositions.creation import triangle_indices
from primops.decompositions.normalization import softmax
from primops.decompositions.reduction import linalg_vector_norm, p_norm
from primops.operand import (
    Scalar,
    Tensor,
    along,
    broadcast_to,
    elementwise,
    flat,
    full,
    full_like,
    iota,
    reduce,
    round_to,
    slice_dim,
    spread,
    to_dtype,
    unsqueeze,
    widen,
    zeros,
)
from primops.promotion import is_integral, is_number
from primops.registry import DecompositionTable
from primops.shapes import is_empty, is_zero, resized, wrap_dim

rules = DecompositionTable()


def _combined(self: Tensor, product: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    """``beta * self + alpha * product``; a beta of 0 ignores NaN in self."""

    if is_integral(product.dtype):
        beta, alpha = int(beta), int(alpha)

    def body(a: Tensor, b: Tensor) -> Tensor:
        b = times(b, alpha)
        return b if is_number(beta) and beta == 0 else prims.add(times(a, beta), b)

    return elementwise(body, broadcast_to(self, product.shape), product)


@rules.register("mv")
def mv(self: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    return prims.reshape(prims.mm(self, unsqueeze(vec, 1)), shape=(self.shape[0],))


@rules.register("addmv")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """``beta * self + alpha * (mat @ vec)``."""
    return _combined(self, mv(mat, vec), beta, alpha)


@rules.register("dot", "vdot")
def dot(self: Tensor, other: Tensor) -> Tensor:
    """The sum of products."""
    return prims.reshape(prims.mm(unsqueeze(self, 0), unsqueeze(other, 1)), shape=())


@rules.register("addbmm")
def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """The sum of a batch of products: one product of the matrices laid side by side."""
    batch, rows, inner = batch1.shape
    left = prims.reshape(prims.permute(batch1, dims=(1, 0, 2)), shape=(rows, batch * inner))
    right = prims.reshape(batch2, shape=(batch * inner, batch2.shape[2]))
    return _combined(self, prims.mm(left, right), beta, alpha)


@rules.register("_trilinear")
def trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """Sum over dims of a product of three tensors, each with dims of size 1 put in."""
    operands = [unsqueeze(a, *dims) for a, dims in ((i1, expand1), (i2, expand2), (i3, expand3))]
    dtype = i1.dtype
    product = elementwise(lambda a, b, c: prims.mul(prims.mul(a, b), c), *map(widen, operands))
    return round_to(reduce(prims.sum, product, list(sumdim), False), dtype)


# Distances
# --------------------------------------------------------------------------------------------------


@rules.register("dist")
def dist(self: Tensor, other: Tensor, p: Scalar = 2) -> Tensor:
    """p-norm of the difference."""
    return linalg_vector_norm(elementwise(prims.sub, self, other), p)


rules.register("native_norm")(linalg_vector_norm)


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    """x1[..., i, :] - x2[..., j, :], dims (..., i, j, :)."""
    left, right = unsqueeze(widen(x1), x1.ndim - 1), unsqueeze(widen(x2), x2.ndim - 2)
    return elementwise(prims.sub, left, right)


@rules.register("_cdist_forward")
def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """p-norms of all differences of rows."""
    difference = _differences(x1, x2)
    if is_zero(difference.shape[-1]):
        return full(difference.shape[:-1], 0.0, x1.dtype, x1.device)
    return round_to(_distance(difference, p, skips_nan=True), x1.dtype)


def _distance(difference: Tensor, p: float, skips_nan: bool) -> Tensor:
    """The p-norm over the last dim. Eager's maximum may skip NaN; its CPU kernel counts differences
    as numbers.
    """
    dim = difference.ndim - 1
    if p == 0 and difference.device.type == "cpu":
        return prims.sum(prims.minimum(prims.ceil(prims.abs(difference)), 1), dims=(dim,))
    if p == float("inf") and (skips_nan or difference.device.type != "cpu"):
        difference = prims.where(prims.ne(difference, difference), 0, difference)
    return p_norm(difference, p, [dim], False)


@rules.register("_cdist_backward")
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient of x1."""
    difference = _differences(x1, x2)
    if is_empty(difference.shape):
        return full_like(x1, 0)
    return round_to(_distance_backward(grad, difference, p, cdist), x1.dtype)


def _distance_backward(grad: Tensor, difference: Tensor, p: float, cdist: Tensor) -> Tensor:
    last, is_cpu = difference.ndim - 1, difference.device.type == "cpu"
    grad, distance = (
        broadcast_to(unsqueeze(widen(a), last), difference.shape) for a in (grad, cdist)
    )
    size, sign = prims.abs(difference), prims.sign(difference)
    if is_cpu:  # its kernels keep NaN
        sign = prims.where(prims.ne(difference, difference), difference, sign)
    if p == 0:
        return zeros(resized(difference.shape, last - 1), difference)
    if p == 1:
        slope: Any = sign
    elif p == float("inf"):
        slope = prims.mul(sign, to_dtype(prims.eq(size, distance), sign.dtype))
        if is_cpu:
            gap = prims.sub(size, distance)
            slope = prims.where(prims.ne(gap, gap), gap, slope)
    else:
        ratio = prims.pow(prims.div(size, distance), p - 1)
        slope = prims.where(prims.eq(distance, 0), 0.0, prims.mul(sign, ratio))
        if p < 2:
            slope = prims.where(prims.eq(size, 0), 0.0, slope)
    return prims.sum(prims.mul(slope, grad), dims=(last - 1,))


def _pairs(a: Tensor) -> list[Tensor]:
    """Rows i < j of all pairs, as index tensors."""
    upper = triangle_indices(a.shape[0], a.shape[0], 1, False, None, a.device)
    rows = [slice_dim(upper, 0, k, k + 1) for k in range(2)]
    return [flat(row) for row in rows]


@rules.register("_pdist_forward")
def pdist_forward(self: Tensor, p: float = 2) -> Tensor:
    """p-norms of the differences of all pairs of rows."""
    if not isinstance(self.shape[0], int):
        return NotImplemented
    i, j = (prims.index(self, at, dims=(0,)) for at in _pairs(self))
    return _distance(prims.sub(i, j), p, skips_nan=False)


@rules.register("_pdist_backward")
def pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """``cdist_backward`` of the symmetric matrix of distances, without those of a row to itself,
    where infinities cancel.
    """
    if not isinstance(self.shape[0], int):
        return NotImplemented
    i, j = _pairs(self)

    def square(a: Tensor) -> Tensor:
        target = zeros((self.shape[0], self.shape[0]), a)
        above = prims.index_put(target, a, i, j, dims=(0, 1), accumulate=False)
        return prims.index_put(above, a, j, i, dims=(0, 1), accumulate=False)

    difference, place = _differences(self, self), iota(self.shape[0], torch.int64, self.device)
    one, other = (along(place, difference.shape, k) for k in range(2))
    grad = square(grad)
    difference = prims.where(prims.eq(one, other), 0, difference)
    return _distance_backward(grad, difference, p, square(pdist))


# Weight normalisation
# --------------------------------------------------------------------------------------------------


def _all_but(rank: int, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d != dim)


@rules.register("_weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """``g * v / |v|`` per slice of dim; also the norms."""
    wide = widen(v)
    others = _all_but(v.ndim, wrap_dim(dim, v.ndim))
    norms = p_norm(wide, 2, others, False)
    scale = prims.div(prims.reshape(to_dtype(g, wide.dtype), shape=norms.shape), norms)
    kept = unsqueeze(norms, *others)
    return round_to(prims.mul(wide, spread(scale, wide.shape, others)), v.dtype), kept


@rules.register("_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of v and g."""
    v, grad = widen(saved_v), widen(grad_w)
    norms, g = (broadcast_to(to_dtype(a, v.dtype), v.shape) for a in (saved_norms, saved_g))
    others = _all_but(v.ndim, wrap_dim(dim, v.ndim))
    dot = prims.sum(prims.mul(grad, v), dims=others)
    wide = spread(dot, v.shape, others)
    grad_g = prims.div(unsqueeze(dot, *others), to_dtype(saved_norms, v.dtype))
    inner = prims.sub(grad, prims.div(prims.mul(v, wide), prims.mul(norms, norms)))
    grad_v = prims.mul(prims.div(g, norms), inner)
    return round_to(grad_v, saved_v.dtype), round_to(grad_g, saved_g.dtype)


@rules.register("_masked_softmax")
def masked_softmax(
    self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
) -> Tensor:
    """``softmax`` without the elements that the mask names; 0 there."""
    if mask.ndim != self.ndim:
        return NotImplemented
    covered = broadcast_to(mask, self.shape)
    hidden = elementwise(lambda a: prims.where(covered, float("-inf"), a), self)
    return softmax(hidden, self.ndim - 1 if dim is None else dim)
