"""Replaces attention written as products and a softmax by one call of scaled_dot_product_attention.

Matching starts at the second product and goes backwards, through views and copies. The scores may
be scaled (multiplied or divided by a number, before or after the product), masked by addition or by
filling with -inf, and converted between dtypes around the softmax. A query whose keys are all
masked gives NaN in the original code, and in the replacement too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from primops import TensorMeta
from symshapes.choices import decide
from torch import fx

from .match import (
    add_call,
    apply_to_calls,
    arguments_of,
    dense,
    meta_of,
    name_of,
    only_user,
    remove_dead,
    same_shape,
    strides_for,
    tensor_of,
    transposed,
)

aten = torch.ops.aten
COPIES = {"view", "_unsafe_view", "reshape", "clone", "expand", "alias", "contiguous"}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda")
MAX_STEPS = 12
FEW_KEYS, MANY = 64, 1 << 20


@dataclass(slots=True)
class Scores:
    """The matched scores ``softmax(scale * q @ k + mask)``, with ``q`` and ``k`` as the operands of
    the product (``k`` is still transposed).
    """

    product: fx.Node
    scale: float = 1.0
    mask: fx.Node | None = None
    fills: bool = False


def fuse_attention(gm: fx.GraphModule) -> int:
    """Replaces each attention that is written as products and a softmax; returns how many."""
    count = apply_to_calls(gm, {"bmm": _fuse})
    if count:
        remove_dead(gm)
    return count


def _source(node: Any) -> Any:
    """The node that computes the value, found by skipping views and copies that have no other user
    and keep the order of the elements.
    """
    while (inner := _copied(node)) is not None and only_user(inner) is node:
        node = inner
    return node


def _copied(node: Any) -> fx.Node | None:
    if (
        name_of(node) not in COPIES
        or not isinstance(node.args[0], fx.Node)
        or not _keeps_count(node.args[0], node)
    ):
        return None
    return node.args[0]


def _keeps_count(a: fx.Node, b: fx.Node) -> bool:
    first, second = meta_of(a), meta_of(b)
    if first is None or second is None:
        return False
    return first.dtype == second.dtype and _count(first) == _count(second)


def _count(meta: TensorMeta) -> object:
    sizes = [size.node.expr if isinstance(size, torch.SymInt) else size for size in meta.shape]
    return math.prod(sizes)


def _fuse(output: fx.Node) -> bool:
    probabilities = _source(output.args[0])
    weights = probabilities
    if name_of(weights) == "_to_copy" and only_user(weights) is not None:
        weights = _source(weights.args[0])
    if name_of(weights) != "_softmax" or only_user(weights) is None:
        return False
    whole = meta_of(weights)
    scores, dim, _ = arguments_of(weights)
    if whole is None or dim % whole.ndim != whole.ndim - 1 or whole.ndim not in (3, 4):
        return False
    found = _trace_scores(scores, whole)
    if found is None:
        return False
    query, key = (_operand(found.product, i, whole) for i in (0, 1))
    value = _operand(output, 1, whole)
    if query is None or key is None or value is None or not _is_possible(query, key, value, whole):
        return False
    _replace(output, found, (query, key, value), whole)
    return True


def _trace_scores(node: Any, whole: TensorMeta) -> Scores | None:
    """Follows the scores back to their product; None if they don't match."""
    scale, mask, fills = 1.0, None, False
    for _ in range(MAX_STEPS):
        node = _source(node)
        name = name_of(node)
        if name == "bmm":
            return Scores(node, scale, mask, fills)  # type: ignore[arg-type]
        if not name or only_user(node) is None:
            return None
        arguments = arguments_of(node)
        if name in ("mul", "div") and isinstance(arguments[1], int | float) and len(arguments) == 2:
            scale = scale * arguments[1] if name == "mul" else scale / arguments[1]
        elif (
            name == "add"
            and mask is None
            and scale == 1.0
            and isinstance(arguments[1], fx.Node)
            and arguments[2] == 1
        ):
            left, right = arguments[:2]
            mask, arguments[0] = (right, left) if _leads_to_product(left) else (left, right)
            if meta_of(mask).dtype != meta_of(arguments[0]).dtype:  # type: ignore[union-attr]
                return None
        elif name == "masked_fill" and mask is None and scale == 1.0 and arguments[2] == -math.inf:
            mask, fills = arguments[1], True
        elif name != "_to_copy" or not _widens(node):
            return None
        meta = meta_of(arguments[0])
        if meta is None or not same_shape(meta.shape, whole.shape):
            return None
        node = arguments[0]
    return None


def _leads_to_product(node: Any) -> bool:
    for _ in range(MAX_STEPS):
        node = _source(node)
        if name_of(node) == "bmm":
            return True
        if name_of(node) not in ("mul", "div", "_to_copy"):
            return False
        node = node.args[0]
    return False


def _widens(node: fx.Node) -> bool:
    before, after = meta_of(node.args[0]), meta_of(node)
    return (
        before is not None
        and after is not None
        and before.dtype in FLOATS
        and after.dtype in (torch.float32, before.dtype)
    )


def _operand(product: fx.Node, position: int, whole: TensorMeta) -> fx.Node | None:
    """The operand of a product as ``[batch..., rows, columns]``, before it was copied and flattened
    for the product.
    """
    node, found = product.args[position], None
    while isinstance(node, fx.Node):
        meta = meta_of(node)
        if (
            meta is not None
            and meta.ndim == whole.ndim
            and same_shape(meta.shape[:-2], whole.shape[:-2])
        ):
            found = node
        node = _copied(node)
    return found


def _is_possible(query: fx.Node, key: fx.Node, value: fx.Node, whole: TensorMeta) -> bool:
    q, k, v = map(tensor_of, (query, key, value))
    if len({(meta.dtype, meta.device) for meta in (q, k, v)}) != 1:
        return False
    if q.dtype not in FLOATS or q.device.type not in DEVICES:
        return False
    # k is [..., depth, keys] here; v [..., keys, depth]
    fits = (
        same_shape(q.shape[-1:], k.shape[-2:-1])
        and same_shape(k.shape[-1:], v.shape[-2:-1])
        and same_shape(q.shape[-1:], v.shape[-1:])
        and same_shape((q.shape[-2], k.shape[-1]), whole.shape[-2:])
    )
    is_faster = not _has_short_rows(whole)
    return fits and decide("calls of attention", value.name, is_faster, numbered=True)


def _has_short_rows(whole: TensorMeta) -> bool:
    """Whether there are many rows with few keys (windows of an image): attention kernels on GPUs
    then compute twice as many scores as needed, and separate products and a softmax take two thirds
    of the time.
    """
    keys, count = whole.shape[-1], _count(whole)
    return (
        whole.device.type == "cuda"
        and isinstance(keys, int)
        and keys < FEW_KEYS
        and isinstance(count, int)
        and count > MANY
    )


def _replace(
    output: fx.Node, found: Scores, operands: tuple[fx.Node, fx.Node, fx.Node], whole: TensorMeta
) -> None:
    """Inserts the call before ``output``, and replaces ``output`` by its result, reshaped."""
    query, key, value = operands
    keys = add_call(output, aten.transpose.int, (key, -2, -1), transposed(tensor_of(key)))
    tensors, meta = [query, keys, value], tensor_of(query)
    mask = None if found.mask is None else _additive_mask(output, found, meta.dtype)
    shape = meta.shape
    if whole.ndim == 3:
        tensors, shape = [_unsqueezed(output, tensor) for tensor in tensors], (1, *shape)
        if mask is not None and tensor_of(mask).ndim == 3:
            mask = _unsqueezed(output, mask)
    result = add_call(
        output,
        aten.scaled_dot_product_attention.default,
        (*tensors, mask),
        TensorMeta(shape, attended_strides(shape), meta.dtype, meta.device),
        {"scale": found.scale},
    )
    if mask is not None:
        result = _nan_where_all_masked(output, result, mask)
    last, sizes = tensor_of(output), _sizes_of(output)
    final = add_call(output, aten.reshape.default, (result, sizes), dense(last.shape, last))
    output.replace_all_uses_with(final)


def attended_strides(shape: tuple) -> tuple:
    """Strides of the kernels' result: they write ``[batch, rows, heads, depth]`` and return it
    transposed.
    """
    batch, heads, rows, depth = shape
    strides = strides_for((batch, rows, heads, depth), torch.contiguous_format)
    return strides[0], strides[2], strides[1], strides[3]


def _unsqueezed(output: fx.Node, node: fx.Node) -> fx.Node:
    meta = tensor_of(node)
    strides = (meta.shape[0] * meta.strides[0], *meta.strides)
    wide = TensorMeta((1, *meta.shape), strides, meta.dtype, meta.device)
    return add_call(output, aten.unsqueeze.default, (node, 0), wide)


def _additive_mask(output: fx.Node, found: Scores, dtype: torch.dtype) -> fx.Node:
    """The mask as a tensor to add, in the dtype of the operands."""
    mask = found.mask
    assert mask is not None
    meta = tensor_of(mask)
    added = dense(meta.shape, meta, dtype)
    if not found.fills and meta.dtype == dtype:
        return mask
    if not found.fills:
        return add_call(output, aten._to_copy.default, (mask,), added, {"dtype": dtype})
    zero, low = (_number(output, number, added) for number in (0.0, -math.inf))
    return add_call(output, aten.where.self, (mask, low, zero), added)


def _number(output: fx.Node, number: float, like: TensorMeta) -> fx.Node:
    options = {"dtype": like.dtype, "device": like.device}
    return add_call(output, aten.full.default, ([], number), dense((), like), options)


def _nan_where_all_masked(output: fx.Node, result: fx.Node, mask: fx.Node) -> fx.Node:
    masked, meta = tensor_of(mask), tensor_of(result)
    row = dense((*masked.shape[:-1], 1), masked)
    top = add_call(output, aten.amax.default, (mask, [-1], True), row)
    none = add_call(output, aten.eq.Scalar, (top, -math.inf), dense(row.shape, row, torch.bool))
    nan = _number(output, math.nan, meta)
    return add_call(output, aten.where.self, (none, nan, result), meta)


def _sizes_of(output: fx.Node) -> list[Any]:
    """The sizes of the result as arguments: numbers, or nodes that compute them."""
    return [
        size
        if isinstance(size, int)
        else add_call(output, aten.sym_size.int, (output.args[operand], dim), size)
        for size, (operand, dim) in zip(
            tensor_of(output).shape, ((0, 0), (0, 1), (1, 2)), strict=True
        )
    ]
