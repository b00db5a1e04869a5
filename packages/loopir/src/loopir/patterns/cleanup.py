"""Small rewrites that leave fewer calls: nested padding and concatenation, padding before
convolutions, bias additions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .match import add_call, arguments_of, meta_of, name_of, only_user, remove_dead, same_shape

aten = torch.ops.aten


def clean_up(gm: fx.GraphModule) -> int:
    """Applies each rule once to every node, in graph order; returns how often one did."""
    count = 0
    for node in list(gm.graph.nodes):
        rule = RULES.get(name_of(node))
        replacement = rule(node) if rule is not None else None
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            gm.graph.erase_node(node)
            count += 1
    if count:
        remove_dead(gm)
    return count


def _flatten_cat(node: fx.Node) -> fx.Node | None:
    """``cat([cat([a, b]), c])`` along one dim is ``cat([a, b, c])``."""
    tensors, dim = arguments_of(node)
    meta = meta_of(node)
    assert meta is not None
    parts: list[Any] = []
    for tensor in tensors:
        inner = (
            arguments_of(tensor) if name_of(tensor) == "cat" and only_user(tensor) is node else None
        )
        nested = (
            inner is not None
            and inner[1] % meta.ndim == dim % meta.ndim
            and _same_kind(tensor, node)
        )
        parts += inner[0] if nested and inner is not None else [tensor]
    if len(parts) > len(tensors):
        return add_call(node, aten.cat.default, (parts, dim), node.meta["val"])
    return None


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    first, second = meta_of(a), meta_of(b)
    return (
        first is not None
        and second is not None
        and first.dtype == second.dtype
        and first.ndim == second.ndim
    )


def _static(values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _merge_pads(node: fx.Node) -> fx.Node | None:
    """Padding what was just padded with the same value, both growing, is one padding."""
    x, pad, value = arguments_of(node)
    if name_of(x) != "constant_pad_nd" or only_user(x) is not node:
        return None
    source, before, fill = arguments_of(x)
    if fill != value or not _static([*pad, *before]) or min([*pad, *before], default=0) < 0:
        return None
    longest = max(len(pad), len(before))
    sums = [
        (pad[i] if i < len(pad) else 0) + (before[i] if i < len(before) else 0)
        for i in range(longest)
    ]
    return add_call(node, aten.constant_pad_nd.default, (source, sums, value), node.meta["val"])


def _pad_in_convolution(node: fx.Node) -> fx.Node | None:
    """Zeros put around the image alike on both sides are the convolution's own padding."""
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
    low, high = pad[0::2], pad[1::2]
    if list(low) != list(high):
        return None
    extra = [*reversed(low)]
    extra = [0] * (dims - len(extra)) + extra
    own = list(padding) * dims if len(padding) == 1 else list(padding)
    total = [a + b for a, b in zip(own, extra, strict=True)]
    args = (source, weight, bias, stride, total, dilation, transposed, *rest)
    return add_call(node, aten.convolution.default, args, node.meta["val"])


def _bias_in_product(node: fx.Node) -> fx.Node | None:
    """``mm(a, b) + bias`` with one number per column is ``addmm``."""
    x, bias, alpha = arguments_of(node)
    if name_of(x) != "mm":
        x, bias = bias, x
    result, one = meta_of(node), meta_of(bias)
    if (
        name_of(x) != "mm"
        or alpha != 1
        or only_user(x) is not node
        or result is None
        or one is None
    ):
        return None
    if (
        one.dtype != result.dtype
        or one.ndim != 1
        or not same_shape(one.shape, result.shape[-1:])
        or one.device != result.device
    ):
        return None
    return add_call(node, aten.addmm.default, (bias, *x.args), node.meta["val"])


RULES = {
    "cat": _flatten_cat,
    "constant_pad_nd": _merge_pads,
    "convolution": _pad_in_convolution,
    "add": _bias_in_product,
}
