"""Biases of convolutions on CUDA devices as additions of their own, and their gradients as sums.

The library adds a bias in a kernel of its own after the convolution, and sums up its gradient in
another: loops around the convolution do both while they have the elements in registers anyway.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from primops import TensorMeta
from torch import fx

from .match import add_call, arguments_of, meta_of, name_of, remove_dead

aten = torch.ops.aten
CHANNELS = 1


def part_biases(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Takes biases out of convolutions and their gradients; returns how many."""
    rules = {"convolution": _part_bias, "convolution_backward": _part_gradient}
    found = [(node, rules[name_of(node)]) for node in gm.graph.nodes if name_of(node) in rules]
    count = sum(rule(node) for node, rule in found if _is_on(node.args[0], device))
    if count:
        remove_dead(gm)
    return count


def _is_on(node: Any, device: str) -> bool:
    meta = meta_of(node)
    return meta is not None and meta.device.type == device


def _part_bias(node: fx.Node) -> bool:
    image, weight, bias, *rest = arguments_of(node)
    result, vector = meta_of(node), meta_of(bias)
    if result is None or vector is None or vector.ndim != 1 or vector.dtype != result.dtype:
        return False
    product = add_call(
        node, aten.convolution.default, (image, weight, None, *rest), node.meta["val"]
    )
    spread = tuple(-1 if dim == CHANNELS else 1 for dim in range(result.ndim))
    shape = tuple(vector.shape[0] if size < 0 else 1 for size in spread)
    strides = tuple(vector.strides[0] if size < 0 else vector.shape[0] for size in spread)
    column = add_call(
        node,
        aten.view.default,
        (bias, spread),
        TensorMeta(shape, strides, vector.dtype, vector.device),
    )
    total = add_call(node, aten.add.Tensor, (product, column), node.meta["val"])
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
    return True


def _part_gradient(node: fx.Node) -> bool:
    gradient, *middle, mask = arguments_of(node)
    meta = meta_of(gradient)
    if not mask[2] or meta is None:
        return False
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 2:
            dims = [dim for dim in range(meta.ndim) if dim != CHANNELS]
            user.replace_all_uses_with(
                add_call(user, aten.sum.dim_IntList, (gradient, dims), user.meta["val"])
            )
            user.graph.erase_node(user)
    node.args, node.kwargs = (gradient, *middle, [*mask[:2], False]), {}
    return True
