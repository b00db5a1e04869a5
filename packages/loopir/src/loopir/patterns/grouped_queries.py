"""Attention of one query per head, many of which share a head of keys: such queries become rows of
one head, so that keys and values are not repeated in memory.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from primops import TensorMeta
from torch import fx

from .attention import attended_strides
from .match import (
    VIEWS,
    add_call,
    apply_to_calls,
    arguments_of,
    dense,
    name_of,
    same_shape,
    tensor_of,
)

aten = torch.ops.aten


def group_queries(gm: fx.GraphModule) -> int:
    """Rewrites the CPU's calls of attention whose keys and values are repeated for each query head;
    returns how many.
    """
    return apply_to_calls(gm, {"_scaled_dot_product_flash_attention_for_cpu": _group})


def _group(node: fx.Node) -> bool:
    query, key, value, dropout, is_causal, mask, _ = arguments_of(node)
    keys, values = repeated(key), repeated(value)
    results = [user for user in node.users if user.users]
    is_read = bool(results) and all(user.args[1] == 0 for user in results)
    if keys is None or values is None or dropout or is_causal or not is_read:
        return False
    meta, shared = tensor_of(query), tensor_of(keys)
    sizes = (*meta.shape, *shared.shape)
    if not all(isinstance(size, int) for size in sizes) or meta.shape[2] != 1:
        return False
    if mask is not None and tuple(tensor_of(mask).shape[-3:-1]) != (1, 1):
        return False
    batch, heads, _, depth = meta.shape
    groups = shared.shape[1]
    shape = (batch, groups, heads // groups, depth)
    rows = add_call(node, aten.reshape.default, (query, [*shape]), dense(shape, meta))
    made = TensorMeta(shape, attended_strides(shape), meta.dtype, meta.device)
    sums = dense(shape[:3], TensorMeta.from_tensor(node.meta["val"][1]))
    sums = TensorMeta(sums.shape, (heads, 1, groups), sums.dtype, sums.device)
    operands = (rows, keys, values, *node.args[3:])
    op: Any = node.target
    attended = add_call(node, op, operands, (made, sums), dict(node.kwargs))
    get: Any = operator.getitem
    first = add_call(node, get, (attended, 0), made)
    whole = add_call(node, aten.reshape.default, (first, [*meta.shape]), dense(meta.shape, meta))
    for result in results:
        result.replace_all_uses_with(whole)
    for dead in (*node.users, node):
        node.graph.erase_node(dead)
    return True


def repeated(node: Any) -> fx.Node | None:
    """The tensor whose heads, dim 1, are repeated one after the other; None for anything else."""
    source: Any = node.args[0] if name_of(node) in VIEWS else None
    while name_of(source) in ("clone", "contiguous"):
        source = source.args[0]
    before: Any = source.args[0] if name_of(source) == "expand" else None
    if name_of(before) != "unsqueeze" or before.args[1] != 2:
        return None
    narrow, wide, whole = (tensor_of(each).shape for each in (before, source, node))
    batch, heads, count, *rest = wide
    is_repeated = same_shape(narrow, (batch, heads, 1, *rest)) and same_shape(
        whole, (batch, heads * count, *rest)
    )
    return before.args[0] if is_repeated else None
