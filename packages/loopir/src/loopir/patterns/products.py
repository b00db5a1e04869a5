"""Small convolutions on the CPU as matrix products.

oneDNN reorders weights for its kernels in every call of a training step; where an image has few places that costs more than
the multiplication: of a pointwise convolution at 16 places ten times as much, of the gradient of a large weight five times.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from primops import TensorMeta
from torch import fx
from torch._ops import OpOverload

from loopir.patterns.match import add_call, arguments_of, in_format, meta_of, name_of, strides_for

aten = torch.ops.aten
POINTWISE_PLACES, GRADIENT_PLACES = 64, 256
LARGE_WEIGHT = 1 << 19


def multiply_convolutions(gm: fx.GraphModule) -> int:
    """Rewrites convolutions of few places, and gradients of theirs; returns how many."""
    count = 0
    for node in list(gm.graph.nodes):
        if name_of(node) == "convolution":
            count += _forward(node)
        elif name_of(node) == "convolution_backward":
            count += _backward(node)
    return count


def _suits(image: Any, x: Any, weight: Any, arguments: list[Any]) -> bool:
    """Whether these are static float32 images on the CPU and one ordinary convolution of them. ``arguments``: stride, padding,
    dilation, transposed, output padding, groups."""
    metas = [meta_of(node) for node in (image, x, weight)]
    if any(m is None or m.ndim != 4 or m.dtype != torch.float32 or m.device.type != "cpu" for m in metas):
        return False
    static = all(isinstance(size, int) and size > 0 for m in metas for size in m.shape)  # type: ignore[union-attr]
    return static and not arguments[3] and arguments[5] == 1


def _places(image: fx.Node) -> int:
    meta = meta_of(image)
    assert meta is not None
    return int(meta.shape[0] * prod(meta.shape[2:]))


def _is_pointwise(weight: fx.Node, arguments: list[Any]) -> bool:
    meta = meta_of(weight)
    assert meta is not None
    return tuple(meta.shape[2:]) == (1, 1) and set(arguments[0]) == {1} and set(arguments[1]) == {0}


def _forward(node: fx.Node) -> bool:
    x, weight, bias, *rest = arguments_of(node)
    if bias is not None or not _suits(node, x, weight, rest) or not _is_pointwise(weight, rest):
        return False
    if _places(node) > POINTWISE_PLACES:
        return False
    product = _multiply(node, _matrix(node, weight), _columns(node, x))
    node.replace_all_uses_with(_images(node, product, node))
    node.graph.erase_node(node)
    return True


def _backward(node: fx.Node) -> bool:
    gradient, x, weight, _, *rest, wanted = arguments_of(node)
    if not _suits(gradient, x, weight, rest):
        return False
    places, pointwise = _places(gradient), _is_pointwise(weight, rest)
    meta = meta_of(weight)
    assert meta is not None
    large = prod(meta.shape) >= LARGE_WEIGHT and places <= GRADIENT_PLACES
    replaced: dict[int, fx.Node] = {}
    if wanted[0] and pointwise and places <= POINTWISE_PLACES:
        matrix = _turned(node, _matrix(node, weight), (1, 0))
        replaced[0] = _images(node, _multiply(node, matrix, _columns(node, gradient)), x)
    if wanted[1] and (large or (pointwise and places <= POINTWISE_PLACES)):
        columns = _columns(node, x if pointwise else _windows(node, x, gradient, meta, rest))
        product = _multiply(node, _columns(node, gradient), _turned(node, columns, (1, 0)))
        replaced[1] = _shaped(node, product, tuple(meta.shape))
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] in replaced:
            user.replace_all_uses_with(replaced[user.args[1]])  # type: ignore[index]
            node.graph.erase_node(user)
    node.args = (*node.args[:-1], [bool(want) and i not in replaced for i, want in enumerate(wanted)])
    node.meta["val"] = tuple(None if i in replaced else value for i, value in enumerate(node.meta["val"]))
    return bool(replaced)


def _call(before: fx.Node, op: OpOverload, args: tuple, shape: tuple[Any, ...], like: fx.Node) -> fx.Node:
    meta = meta_of(like)
    assert meta is not None
    return add_call(before, op, args, TensorMeta(shape, strides_for(shape, torch.contiguous_format), meta.dtype, meta.device))


def _shaped(before: fx.Node, x: fx.Node, shape: tuple[Any, ...]) -> fx.Node:
    return _call(before, aten.view.default, (x, list(shape)), shape, x)


def _turned(before: fx.Node, x: fx.Node, order: tuple[int, ...]) -> fx.Node:
    meta = meta_of(x)
    assert meta is not None
    shape, strides = (tuple(values[dim] for dim in order) for values in (meta.shape, meta.strides))
    return add_call(before, aten.permute.default, (x, list(order)), TensorMeta(shape, strides, meta.dtype, meta.device))


def _matrix(before: fx.Node, weight: fx.Node) -> fx.Node:
    """A weight as a matrix, one row per output channel."""
    meta = meta_of(weight)
    assert meta is not None
    return _shaped(before, in_format(weight, torch.contiguous_format, before), (meta.shape[0], prod(meta.shape[1:])))


def _columns(before: fx.Node, image: fx.Node) -> fx.Node:
    """Images as a matrix: a row per channel, a column per place."""
    meta = meta_of(image)
    assert meta is not None
    turned = _turned(before, image, (1, 0, *range(2, meta.ndim)))
    return _shaped(
        before, in_format(turned, torch.contiguous_format, before), (meta.shape[1], meta.shape[0] * prod(meta.shape[2:]))
    )


def _windows(before: fx.Node, x: fx.Node, gradient: fx.Node, weight: TensorMeta, arguments: list[Any]) -> fx.Node:
    """What each place of the result sees of the image: images of channels times window, places in one dimension."""
    stride, padding, dilation = (list(value) * (2 if len(value) == 1 else 1) for value in arguments[:3])
    meta = meta_of(gradient)
    assert meta is not None
    shape = (meta.shape[0], prod(weight.shape[1:]), prod(meta.shape[2:]))
    return _call(before, aten.im2col.default, (x, list(weight.shape[2:]), dilation, padding, stride), shape, x)


def _multiply(before: fx.Node, a: fx.Node, b: fx.Node) -> fx.Node:
    left, right = meta_of(a), meta_of(b)
    assert left is not None and right is not None
    return _call(before, aten.mm.default, (a, b), (left.shape[0], right.shape[1]), a)


def _images(before: fx.Node, matrix: fx.Node, like: fx.Node) -> fx.Node:
    """The images of ``like``'s shape whose ``_columns`` are ``matrix``."""
    meta = meta_of(like)
    assert meta is not None
    count, channels, *places = meta.shape
    turned = _turned(before, _shaped(before, matrix, (channels, count, *places)), (1, 0, 2, 3))
    return in_format(turned, torch.contiguous_format, before)
