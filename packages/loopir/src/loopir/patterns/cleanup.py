"""Small rewrites that reduce calls and their work: nested padding and concatenation, padding before
convolutions, bias additions, vectors of factorisations that nobody reads.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from primops import TensorMeta
from torch import fx

from .match import (
    add_call,
    apply_to_calls,
    arguments_of,
    meta_of,
    name_of,
    only_user,
    remove_dead,
    same_shape,
    tensor_of,
)

aten = torch.ops.aten


def clean_up(gm: fx.GraphModule) -> int:
    """Applies each rule once to every node, in graph order; returns how many rewrites were made."""
    count = apply_to_calls(gm, dict.fromkeys(RULES, _replace))
    if count:
        remove_dead(gm)
    return count


def _replace(node: fx.Node) -> bool:
    replacement = RULES[name_of(node)](node)
    if replacement is None:
        return False
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)
    return True


def _flatten_cat(node: fx.Node) -> fx.Node | None:
    """Replaces ``cat([cat([a, b]), c])`` along one dim by ``cat([a, b, c])``."""
    tensors, dim = arguments_of(node)
    meta, parts = tensor_of(node), []
    for tensor in tensors:
        inner, inner_dim = [tensor], dim
        if name_of(tensor) == "cat" and only_user(tensor) is node:
            inner, inner_dim = arguments_of(tensor)
        along = inner_dim % meta.ndim == dim % meta.ndim
        parts += inner if along and _same_kind(tensor_of(tensor), meta) else [tensor]
    if len(parts) > len(tensors):
        return add_call(node, aten.cat.default, (parts, dim), node.meta["val"])
    return None


def _same_kind(a: TensorMeta, b: TensorMeta) -> bool:
    return (a.dtype, a.ndim) == (b.dtype, b.ndim)


def _static(values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _merge_pads(node: fx.Node) -> fx.Node | None:
    """Merges two consecutive paddings with the same value into one, if both enlarge the tensor."""
    x, pad, value = arguments_of(node)
    if name_of(x) != "constant_pad_nd" or only_user(x) is not node:
        return None
    source, before, fill = arguments_of(x)
    if fill != value or not _static([*pad, *before]) or min([*pad, *before], default=0) < 0:
        return None
    sums = list(map(sum, zip_longest(pad, before, fillvalue=0)))
    return add_call(node, aten.constant_pad_nd.default, (source, sums, value), node.meta["val"])


def _pad_in_convolution(node: fx.Node) -> fx.Node | None:
    """Replaces symmetric zero padding before a convolution by the padding of the convolution."""
    x, weight, bias, stride, padding, dilation, transposed, *rest = arguments_of(node)
    meta = meta_of(weight)
    if name_of(x) != "constant_pad_nd" or transposed or meta is None:
        return None
    source, pad, value = arguments_of(x)
    dims = meta.ndim - 2
    if (
        value != 0
        or not _static([*pad, *padding])
        or min(pad, default=-1) < 0
        or len(pad) > 2 * dims
        or len(pad) % 2
    ):
        return None
    low, high = list(pad[0::2]), list(pad[1::2])
    if low != high:
        return None
    extra = [0] * (dims - len(low)) + low[::-1]
    own = list(padding) * dims if len(padding) == 1 else list(padding)
    total = [a + b for a, b in zip(own, extra, strict=True)]
    args = (source, weight, bias, stride, total, dilation, transposed, *rest)
    return add_call(node, aten.convolution.default, args, node.meta["val"])


def _bias_in_product(node: fx.Node) -> fx.Node | None:
    """Replaces ``mm(a, b) + bias``, with one number per column, by ``addmm``."""
    x, bias, alpha = arguments_of(node)
    if name_of(x) != "mm":
        x, bias = bias, x
    one = meta_of(bias)
    if name_of(x) != "mm" or alpha != 1 or only_user(x) is not node or one is None:
        return None
    result = tensor_of(node)
    is_alike = (one.dtype, one.device) == (result.dtype, result.device)
    if not is_alike or not same_shape(one.shape, result.shape[-1:]):
        return None
    return add_call(node, aten.addmm.default, (bias, *x.args), node.meta["val"])


def _values_alone(node: fx.Node) -> fx.Node | None:
    """Leaves out singular or eigenvectors that are not read, as eager mode does where no gradient
    can need them.
    """
    *options, with_vectors = arguments_of(node)[:3]
    values = _VALUES[name_of(node)]
    reads = [user for user in node.users if user.target is operator.getitem]
    is_alone = len(reads) == len(node.users) and all(read.args[1] == values for read in reads)
    if not with_vectors or not is_alone:
        return None
    found = [TensorMeta.from_tensor(value) for value in node.meta["val"]]
    metas = tuple(
        meta if place == values else replace(meta, shape=(0,), strides=(1,))
        for place, meta in enumerate(found)
    )
    target: Any = node.target
    return add_call(node, target, (*options, False), metas, dict(node.kwargs))


_VALUES = {"_linalg_svd": 1, "_linalg_eigh": 0}
"""Which result of a factorisation has the values."""
RULES = {
    "cat": _flatten_cat,
    "constant_pad_nd": _merge_pads,
    "convolution": _pad_in_convolution,
    "add": _bias_in_product,
    **dict.fromkeys(_VALUES, _values_alone),
}
