"""Replaces biases of convolutions on CUDA devices by additions, and their gradients by sums.

The library adds a bias in a separate kernel after the convolution, and sums its gradient in
another. Loops around the convolution can do both while the elements are in registers.
"""

from __future__ import annotations

import operator

import torch
from primops import TensorMeta
from torch import fx

from .match import add_call, apply_to_calls, arguments_of, meta_of, remove_dead, tensor_of

aten = torch.ops.aten
CHANNELS = 1


def part_biases(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Removes biases from convolutions and their gradients; returns how many."""
    rules = {"convolution": _part_bias, "convolution_backward": _part_gradient}
    count = apply_to_calls(gm, rules, device)
    if count:
        remove_dead(gm)
    return count


def _part_bias(node: fx.Node) -> bool:
    image, weight, bias, *rest = arguments_of(node)
    result, vector = tensor_of(node), meta_of(bias)
    if vector is None or vector.ndim != 1 or vector.dtype != result.dtype:
        return False
    convolve, value = aten.convolution.default, node.meta["val"]
    product = add_call(node, convolve, (image, weight, None, *rest), value)
    spread = tuple(-1 if dim == CHANNELS else 1 for dim in range(result.ndim))
    shape = tuple(vector.shape[0] if size < 0 else 1 for size in spread)
    strides = tuple(vector.strides[0] if size < 0 else vector.shape[0] for size in spread)
    meta = TensorMeta(shape, strides, vector.dtype, vector.device)
    column = add_call(node, aten.view.default, (bias, spread), meta)
    total = add_call(node, aten.add.Tensor, (product, column), value)
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
    return True


def _part_gradient(node: fx.Node) -> bool:
    gradient, *middle, mask = arguments_of(node)
    if not mask[2]:
        return False
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 2:
            dims = [dim for dim in range(tensor_of(gradient).ndim) if dim != CHANNELS]
            total = add_call(user, aten.sum.dim_IntList, (gradient, dims), user.meta["val"])
            user.replace_all_uses_with(total)
            user.graph.erase_node(user)
    node.args, node.kwargs = (gradient, *middle, [*mask[:2], False]), {}
    return True
