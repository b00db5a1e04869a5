"""Expresses convolutions with a kernel of one point as matrix products: pixels times channels.

If the rows of pixels are consecutive in memory through all images (channels-last), all images form
one matrix; otherwise each image is one of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch
from loopir import Stage, Template, View, product

from inductor_triton.kernels.indexing import joined

from .product import CONVOLUTION, HALVES, dtype_of

aten = torch.ops.aten


def as_product(template: Template) -> Template:
    """``template`` as one of a matrix product, if it is such a convolution; else unchanged."""
    if (
        template.op is not CONVOLUTION
        or len(template.result.shape) < 3
        or template.epilogue.kernel.reduction
    ):
        return template
    image, weight, bias, stride, padding, _, transposed, _, groups = template.args
    if not isinstance(image, View) or not isinstance(weight, View):
        return template
    if not isinstance(bias, View | None):
        return template
    if (
        transposed
        or groups != 1
        or {*stride} != {1}  # type: ignore[misc]
        or {*padding} != {0}  # type: ignore[misc]
        or {*weight.shape[2:]} != {sympy.Integer(1)}
    ):
        return template
    # a setting other than that of products decides the precision of float32 convolutions
    if dtype_of(template, weight) not in HALVES:
        return template
    views = image, template.result
    batched = not all(_follow(view, (0, *range(2, len(view.shape)))) for view in views)
    if batched and not all(_follow(view, range(2, len(view.shape))) for view in views):
        return template
    left, result = (_matrix(view, batched) for view in views)
    (channels, inputs), (channel_step, input_step) = weight.shape[:2], weight.stride[:2]
    shape, steps = (inputs, channels), (input_step, channel_step)
    if batched:
        shape, steps = (image.shape[0], *shape), (sympy.Integer(0), *steps)
    right = replace(weight, shape=shape, stride=steps)
    plain, adding = (aten.bmm, aten.baddbmm) if batched else (aten.mm, aten.addmm)
    prologues = tuple(
        (name, _of_images(stage, batched) if name == image.buffer else _of_weights(stage))
        for name, stage in template.prologues
    )
    return replace(
        template,
        op=(plain if bias is None else adding).default,
        args=(left, right) if bias is None else (bias, left, right),
        result=result,
        prologues=prologues,
        epilogue=_of_images(template.epilogue, batched),
    )


def _follow(view: View, dims: Sequence[int]) -> bool:
    """Whether the dims form a single dim in memory."""
    long = [d for d in dims if view.shape[d] != 1]
    return all(
        sympy.expand(view.stride[a] - view.stride[b] * view.shape[b]) == 0
        for a, b in itertools.pairwise(long)
    )


def _matrix(view: View, batched: bool) -> View:
    """Images ``[n, c, ...]`` as ``[n, pixels, c]`` or ``[n * pixels, c]``."""
    pixels = [0, *range(2, len(view.shape))][batched:]
    step = next((view.stride[d] for d in reversed(pixels) if view.shape[d] != 1), sympy.Integer(0))
    shape, steps = (product(view.shape[d] for d in pixels), view.shape[1]), (step, view.stride[1])
    if batched:
        shape, steps = (view.shape[0], *shape), (view.stride[0], *steps)
    return replace(view, shape=shape, stride=steps)


def _of_images(stage: Stage, batched: bool) -> Stage:
    """A stage over images, rewritten over the dims of their matrix."""
    kernel = stage.kernel
    first, channels, *others = kernel.ranges
    pixels = others if batched else [first, *others]
    kernel = replace(
        kernel,
        vector_axis=None,
        tile_axis=None,
        ranges=(*([first] if batched else []), *pixels, channels),
    )
    for outer, inner in itertools.pairwise(pixels):
        now = next(loop for loop in kernel.ranges if loop.symbol == outer.symbol)
        kernel = joined(kernel, now, inner)
    return replace(stage, kernel=kernel)


def _of_weights(stage: Stage) -> Stage:
    """A stage over the weights, rewritten over the dims of the right operand."""
    channels, inputs, *single = stage.kernel.ranges
    kernel = replace(
        stage.kernel, vector_axis=None, tile_axis=None, ranges=(*single, inputs, channels)
    )
    for loop in single:
        kernel = joined(kernel, loop, kernel.ranges[1])
    return replace(stage, kernel=kernel)
