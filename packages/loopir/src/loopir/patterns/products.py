"""Rewrites convolutions of a training step on the CPU that are faster as matrix products or as a
sum.

oneDNN reorders weights for its kernels in every call. If an image has few positions, that costs
more than the multiplication: ten times as much for a pointwise convolution at 16 positions, five
times for the gradient of a large weight. oneDNN has no kernel for the gradient of a depthwise
weight with a window above 3 x 3: a fused sum takes a tenth of the time. Convolutions with adjacent
windows (the patches of a vision transformer) are matrix products; for the bfloat16 weight of 32 x
32 windows oneDNN takes 56 ms, a product 3 ms.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from primops import TensorMeta
from symshapes.choices import decide
from torch import fx
from torch._ops import OpOverload

from .match import (
    add_call,
    apply_to_calls,
    arguments_of,
    has_format,
    in_format,
    meta_of,
    tensor_of,
)

aten = torch.ops.aten
POINTWISE_PLACES, GRADIENT_PLACES = 64, 256
LARGE_WEIGHT = 1 << 19
WIDE_WINDOW = 9
DTYPES = (torch.float32, torch.bfloat16)


def multiply_convolutions(gm: fx.GraphModule) -> int:
    """Rewrites the convolutions and gradients that are faster as products or sums; returns how
    many.
    """
    return apply_to_calls(gm, {"convolution": _forward, "convolution_backward": _backward})


@dataclass(frozen=True, slots=True)
class _Case:
    """A convolution with static sizes on the CPU: shapes of image, weight and result, the other
    arguments, and the dtype.
    """

    image: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    dtype: torch.dtype
    name: str

    @property
    def places(self) -> int:
        return self.result[0] * prod(self.result[2:])

    @property
    def is_float32(self) -> bool:
        return self.dtype is torch.float32

    @property
    def is_plain(self) -> bool:
        return self.groups == 1 and {*self.padding} == {0} and {*self.dilation} == {1}

    @property
    def has_patches(self) -> bool:
        """Whether the windows have several elements, don't overlap and cover the images."""
        window = self.weight[2:]
        covered = all(size % step == 0 for size, step in zip(self.image[2:], window, strict=True))
        return self.is_plain and tuple(self.stride) == window and prod(window) > 1 and covered

    @property
    def is_pointwise(self) -> bool:
        """Whether this is a matrix product without rearranging data, and a small one."""
        one = (
            self.is_float32
            and self.is_plain
            and self.weight[2:] == (1, 1)
            and {*self.stride} == {1}
        )
        return one and self._chosen("small", self.places <= POINTWISE_PLACES)

    @property
    def has_large_weight(self) -> bool:
        is_large = prod(self.weight) >= LARGE_WEIGHT and self.places <= GRADIENT_PLACES
        return self.is_float32 and self.groups == 1 and self._chosen("large weight", is_large)

    @property
    def is_wide_depthwise(self) -> bool:
        depthwise = self.groups == self.image[1] == self.weight[0] and {*self.dilation} == {1}
        is_wide = prod(self.weight[2:]) > WIDE_WINDOW
        return self.is_float32 and depthwise and self._chosen("wide window", is_wide)

    def _chosen(self, kind: str, preferred: bool) -> bool:
        return decide("products of convolutions", f"{self.name}, {kind}", preferred)


def _case(name: str, x: Any, weight: Any, result: Any, arguments: list[Any]) -> _Case | None:
    """Describes the convolution of this name; None if it can't be rewritten. ``arguments``: stride,
    padding, dilation, transposed, output padding, groups.
    """
    metas = [meta_of(node) for node in (x, weight, result)]
    if arguments[3] or any(
        m is None or m.ndim != 4 or m.dtype not in DTYPES or m.device.type != "cpu" for m in metas
    ):
        return None
    if not all(isinstance(size, int) and size > 0 for m in metas for size in m.shape):  # type: ignore[union-attr]
        return None
    pairs = [list(value) * (2 if len(value) == 1 else 1) for value in arguments[:3]]
    shapes = (tuple(m.shape) for m in metas)  # type: ignore[union-attr]
    return _Case(*shapes, *pairs, arguments[5], metas[0].dtype, name)  # type: ignore[union-attr, arg-type]


def _forward(node: fx.Node) -> bool:
    x, weight, bias, *rest = arguments_of(node)
    case = _case(node.name, x, weight, node, rest)
    if case is None or not (case.has_patches or (bias is None and case.is_pointwise)):
        return False
    write = _Writer(node)
    if case.has_patches:
        operands = (write.patches(x, case), write.transposed(write.matrix(weight)))
        product = (
            write(aten.mm.default, *operands)
            if bias is None
            else write(aten.addmm.default, bias, *operands)
        )
        result = write.placed(product, node)
    else:
        result = write.image(write.matrix(weight), write.columns(x), node)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return True


def _backward(node: fx.Node) -> bool:
    gradient, x, weight, _, *rest, wanted = arguments_of(node)
    case = _case(node.name, x, weight, gradient, rest)
    if case is None:
        return False
    write, replaced = _Writer(node), {}
    if wanted[0] and case.is_pointwise:
        replaced[0] = write.image(
            write.transposed(write.matrix(weight)), write.columns(gradient), x
        )
    if wanted[0] and case.has_patches:
        product = write(
            aten.mm.default, write.transposed(write.columns(gradient)), write.matrix(weight)
        )
        replaced[0] = write.joined(product, x, case)
    if wanted[1] and case.has_patches:
        product = write(aten.mm.default, write.columns(gradient), write.patches(x, case))
        replaced[1] = write(aten.view.default, product, list(case.weight))
    elif wanted[1] and (case.is_pointwise or case.has_large_weight):
        columns = write.columns(x if case.is_pointwise else write.windows(x, case))
        product = write(aten.mm.default, write.columns(gradient), write.transposed(columns))
        replaced[1] = write(aten.view.default, product, list(case.weight))
    elif wanted[1] and case.is_wide_depthwise:
        replaced[1] = _depthwise_gradient(write, gradient, x, case)
    # the library computes the bias gradient together with the weight's
    if wanted[2] and 1 in replaced:
        replaced[2] = write(aten.sum.dim_IntList, gradient, [0, 2, 3])
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] in replaced:
            user.replace_all_uses_with(replaced[user.args[1]])  # type: ignore[index]
            node.graph.erase_node(user)
    node.args = (
        *node.args[:-1],
        [bool(want) and i not in replaced for i, want in enumerate(wanted)],
    )
    node.meta["val"] = tuple(
        None if i in replaced else value for i, value in enumerate(node.meta["val"])
    )
    return bool(replaced)


def _depthwise_gradient(write: _Writer, gradient: fx.Node, x: fx.Node, case: _Case) -> fx.Node:
    """The gradient of a depthwise weight: multiplies each position of the gradient with the window
    of the image there, and sums the products per channel and position in the window.
    """
    (down, right), (height, width) = case.padding, case.weight[2:]
    padded = write(aten.constant_pad_nd.default, x, [right, right, down, down], 0.0)
    seen = write(aten.unfold.default, padded, 2, height, case.stride[0])
    seen = write(aten.unfold.default, seen, 3, width, case.stride[1])
    spread = write(aten.unsqueeze.default, write(aten.unsqueeze.default, gradient, 4), 5)
    total = write(aten.sum.dim_IntList, write(aten.mul.Tensor, seen, spread), [0, 2, 3])
    return write(aten.view.default, total, list(case.weight))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Inserts calls before a node; runs them on meta tensors to get the sizes and strides of their
    results.
    """

    before: fx.Node

    def __call__(self, op: OpOverload, *args: Any) -> fx.Node:
        result = op(*(_example(arg) if isinstance(arg, fx.Node) else arg for arg in args))
        meta = TensorMeta(tuple(result.shape), result.stride(), result.dtype, torch.device("cpu"))
        return add_call(self.before, op, args, meta)

    def dense(self, x: fx.Node) -> fx.Node:
        return in_format(x, torch.contiguous_format, self.before)

    def transposed(self, matrix: fx.Node) -> fx.Node:
        return self(aten.permute.default, matrix, [1, 0])

    def matrix(self, weight: fx.Node) -> fx.Node:
        """The weight as a matrix with a row per output channel."""
        meta = _example(weight)
        return self(aten.view.default, self.dense(weight), [meta.shape[0], meta[0].numel()])

    def columns(self, image: fx.Node) -> fx.Node:
        """Images as a matrix with a row per channel and a column per position."""
        shape = _example(image).shape
        if _is_channels_last(image):
            rows = self(aten.permute.default, image, [0, 2, 3, 1])
            return self.transposed(
                self(aten.view.default, rows, [shape[0] * prod(shape[2:]), shape[1]])
            )
        turned = self.dense(self(aten.permute.default, image, [1, 0, *range(2, len(shape))]))
        return self(aten.view.default, turned, [shape[1], shape[0] * prod(shape[2:])])

    def image(self, weight: fx.Node, columns: fx.Node, like: fx.Node) -> fx.Node:
        """The product of ``weight`` and ``columns``, as images with the shape and layout of
        ``like``.
        """
        count, channels, *places = _example(like).shape
        if _is_channels_last(like):
            return self.placed(
                self(aten.mm.default, self.transposed(columns), self.transposed(weight)), like
            )
        product = self(
            aten.view.default, self(aten.mm.default, weight, columns), [channels, count, *places]
        )
        return self.dense(self(aten.permute.default, product, [1, 0, 2, 3]))

    def placed(self, rows: fx.Node, like: fx.Node) -> fx.Node:
        """Rows of channels, one per position, as images with the shape and layout of ``like``."""
        count, channels, *places = _example(like).shape
        images = self(
            aten.permute.default,
            self(aten.view.default, rows, [count, *places, channels]),
            [0, 3, 1, 2],
        )
        return images if _is_channels_last(like) else self.dense(images)

    def patches(self, x: fx.Node, case: _Case) -> fx.Node:
        """Non-overlapping windows of the images as a matrix: each row has the channels, rows and
        columns of a window.
        """
        count, channels, *_ = case.image
        (down, right), (height, width) = case.result[2:], case.weight[2:]
        split = self(aten.view.default, x, [count, channels, down, height, right, width])
        turned = self.dense(self(aten.permute.default, split, [0, 2, 4, 1, 3, 5]))
        return self(aten.view.default, turned, [case.places, channels * height * width])

    def joined(self, rows: fx.Node, like: fx.Node, case: _Case) -> fx.Node:
        """The inverse of ``patches``: images with the layout of ``like``."""
        count, channels, *_ = case.image
        (down, right), (height, width) = case.result[2:], case.weight[2:]
        split = self(aten.view.default, rows, [count, down, right, channels, height, width])
        if _is_channels_last(like):
            images = self.dense(self(aten.permute.default, split, [0, 1, 4, 2, 5, 3]))
            images = self(aten.view.default, images, [count, *case.image[2:], channels])
            return self(aten.permute.default, images, [0, 3, 1, 2])
        images = self.dense(self(aten.permute.default, split, [0, 3, 1, 4, 2, 5]))
        return self(aten.view.default, images, list(case.image))

    def windows(self, x: fx.Node, case: _Case) -> fx.Node:
        """The window at each position of the result: images with channels times window elements,
        and the positions in one dimension.
        """
        return self(
            aten.im2col.default, x, list(case.weight[2:]), case.dilation, case.padding, case.stride
        )


def _is_channels_last(image: fx.Node) -> bool:
    meta = meta_of(image)
    return meta is not None and meta.ndim == 4 and has_format(meta, torch.channels_last)


def _example(node: fx.Node) -> torch.Tensor:
    meta = tensor_of(node)
    return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="meta")
