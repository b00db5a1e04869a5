"""Chooses channels-last for convolutions that run faster with it, and for the operators that follow
them.
"""

from __future__ import annotations

import operator

import torch
from primops import TensorMeta
from symshapes.choices import decide
from torch import fx
from torch._ops import OpOverload

from .match import FORMATS, has_format, in_format, meta_of, name_of, tensor_of, with_format

HALF = (torch.float16, torch.bfloat16)
FOLLOWERS = {
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit",
    "native_batch_norm", "native_group_norm", "max_pool2d_with_indices", "avg_pool2d",
    "_adaptive_avg_pool2d",
    "upsample_nearest2d", "upsample_bilinear2d", "cat", "constant_pad_nd", "clone", "_to_copy",
    "native_dropout", "mean",
}  # fmt: skip
CHANNELS_AT_LEAST = 4


def choose_layouts(gm: fx.GraphModule, inference: bool) -> int:
    """Gives convolutions and the operators that follow them channels-last metadata; returns how
    many nodes changed.

    On the CPU this is done for inference only: the backward passes of oneDNN are slower with
    channels-last.
    """
    changed: set[fx.Node] = set()
    for node in list(gm.graph.nodes):
        if name_of(node) == "convolution" and prefers_channels_last(
            node, node, node.args[1], inference
        ):
            _convert(node)
            changed.add(node)
        elif _is_offered(node) or _follows(node, changed):
            changed.add(node)
    return len(changed)


def has_images(gm: fx.GraphModule) -> bool:
    """Whether layouts may be chosen for parts of the graph."""
    return any(name_of(node) == "convolution" for node in gm.graph.nodes)


def prefers_channels_last(node: fx.Node, image: object, weight: object, inference: bool) -> bool:
    """Whether a convolution with this image, or its gradient, runs faster channels-last."""
    meta, kernel = meta_of(image), meta_of(weight)
    if meta is None or kernel is None or meta.ndim != 4:
        return False
    if not all(isinstance(size, int) for size in kernel.shape):
        return False
    if meta.device.type == "cuda":
        is_faster = meta.dtype in HALF
    else:
        is_faster = meta.device.type == "cpu" and inference and max(kernel.shape[2:]) > 0
    is_faster = is_faster and kernel.shape[0] >= CHANNELS_AT_LEAST
    return decide("channels-last", node.name, is_faster)


def _is_offered(node: fx.Node) -> bool:
    """Whether the node calls an operator of a backend whose result already is channels-last."""
    meta = meta_of(node) if isinstance(node.target, OpOverload) and not name_of(node) else None
    return meta is not None and meta.ndim in FORMATS and has_format(meta, FORMATS[meta.ndim])


def _convert(node: fx.Node) -> None:
    """Makes a convolution channels-last. On the CPU, a weight that isn't a constant keeps its
    layout, because oneDNN reorders it in any case.
    """
    x, weight = node.args[:2]
    meta = tensor_of(node)
    stays = meta.device.type == "cpu" and weight.op != "get_attr"  # type: ignore[union-attr]
    images = in_format(x, torch.channels_last, node)  # type: ignore[arg-type]
    kernel = in_format(weight, None if stays else torch.channels_last, node)  # type: ignore[arg-type]
    node.args = (images, kernel, *node.args[2:])
    node.meta["val"] = with_format(meta, torch.channels_last)


def _follows(node: fx.Node, changed: set[fx.Node]) -> bool:
    """Gives a node the layout of an operand that changed, if operators of this kind preserve
    layouts; returns whether it did.
    """
    if not any(operand in changed for operand in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        meta = source.meta["val"][node.args[1]]  # type: ignore[union-attr, index]
        node.meta["val"] = meta
        return isinstance(meta, TensorMeta) and meta.ndim in FORMATS
    target = node.target
    if not isinstance(target, OpOverload) or not (
        torch.Tag.pointwise in target.tags or name_of(node) in FOLLOWERS
    ):
        return False
    if node.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        node.meta["val"] = tuple(_turned(item) for item in value)
        return any(isinstance(item, TensorMeta) for item in node.meta["val"])
    turned = _turned(value)
    node.meta["val"] = turned
    return isinstance(turned, TensorMeta)


def _turned(value: object) -> object:
    if not isinstance(value, torch.Tensor | TensorMeta) or len(value.shape) not in FORMATS:
        return value
    meta = TensorMeta.from_tensor(value)
    return with_format(meta, FORMATS[meta.ndim])
