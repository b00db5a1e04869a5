"""Pads products of 16-bit matrices on CUDA devices whose sizes aren't multiples of 8.

Tensor cores read rows of 16 bytes: a product with a vocabulary of 50257 is several times slower
than one with 50264. The kernel that computes the operand writes the padding (a weight is copied
once), and what reads the result reads a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from primops import TensorMeta
from symshapes.choices import choose, decide
from torch import fx

from .match import (
    VIEWS,
    add_call,
    apply_to_calls,
    dense,
    meta_of,
    name_of,
    tensor_of,
    transposed,
)

aten = torch.ops.aten
ALIGNED = 8
WORTH = 1 << 28
"""Minimum number of multiplications for which padding saves more than its copies cost."""
LARGEST = 1 << 25
"""Maximum bytes of a padded result that is returned. A larger one is computed and sliced in runs of
rows, since it would otherwise be in memory twice.
"""
TURNS = {"t", "permute", "transpose"}
HALVES = (torch.float16, torch.bfloat16)


def pad_products(gm: fx.GraphModule, device: str = "cuda") -> int:
    """Pads the operands of ``mm`` and ``addmm``; returns how many products changed."""
    padded: dict[object, fx.Node] = {}
    rule = partial(_pad_product, padded)
    return apply_to_calls(gm, {"mm": rule, "addmm": rule}, device)


def _pad_product(padded: dict[object, fx.Node], node: fx.Node) -> bool:
    *bias, a, b = node.args[:3] if name_of(node) == "addmm" else node.args
    left, right = tensor_of(a), tensor_of(b)
    if left.dtype not in HALVES:
        return False
    sizes = (*left.shape, tensor_of(node).shape[1])
    if not all(isinstance(size, int) for size in sizes) or node.kwargs:
        return False
    if not decide("padded products", node.name, prod(sizes) >= WORTH):
        return False
    rows, inner, columns = _padding(left, right, sizes)
    if not any((rows, inner, columns)):
        return False
    operands = [_padded(a, (rows, inner), node, padded), _padded(b, (inner, columns), node, padded)]  # type: ignore[arg-type]
    if bias:
        one = meta_of(bias[0])
        if one is None or one.ndim != 1:
            return False
        operands.insert(0, _padded(bias[0], (columns,), node, padded))  # type: ignore[arg-type]
    size = sizes[0] * (sizes[2] + columns) * left.dtype.itemsize
    count = -(-size // LARGEST) if _is_returned(node) and not rows else 1
    count = int(choose("runs of padded products", node.name, str(count), partial(_is_count, sizes)))
    node.replace_all_uses_with(_in_parts(node, operands, (sizes[0], sizes[2]), count))
    node.graph.erase_node(node)
    return True


def _is_count(sizes: Sequence[Any], text: str) -> bool:
    return text.isdigit() and 1 <= int(text) <= max(1, sizes[0])


def _is_returned(node: fx.Node) -> bool:
    """Whether the value, or a reshape of it, is a result of the graph."""
    return any(
        user.op == "output" or (name_of(user) in VIEWS and _is_returned(user))
        for user in node.users
    )


def _in_parts(
    node: fx.Node, operands: Sequence[Any], shape: tuple[Any, Any], count: int
) -> fx.Node:
    """The product of padded operands without the padding, computed in ``count`` runs of rows."""
    *bias, left, right = operands
    if count == 1:
        return _product(node, operands, shape)
    length = -(-shape[0] // count)
    parts = []
    for first in range(0, shape[0], length):
        last = min(first + length, shape[0])
        part = _sliced(node, left, 0, first, last)
        parts.append(_product(node, (*bias, part, right), (last - first, shape[1])))
    return add_call(node, aten.cat.default, (parts, 0), dense(shape, tensor_of(node)))


def _product(node: fx.Node, operands: Sequence[Any], shape: tuple[Any, Any]) -> fx.Node:
    """Calls the operator of ``node`` with other operands and slices the result to ``shape``."""
    left, right = map(tensor_of, operands[-2:])
    whole = dense((left.shape[0], right.shape[1]), left)
    product = add_call(node, node.target, tuple(operands), whole)  # type: ignore[arg-type]
    for dim, size in enumerate(shape):
        product = _sliced(node, product, dim, 0, size)
    return product


def _sliced(before: fx.Node, x: fx.Node, dim: int, first: int, last: int) -> fx.Node:
    """Elements ``first`` to ``last`` of a dim; ``x`` itself if these are all."""
    meta = tensor_of(x)
    if last - first == meta.shape[dim]:
        return x
    kept = tuple(last - first if d == dim else n for d, n in enumerate(meta.shape))
    part = TensorMeta(kept, meta.strides, meta.dtype, meta.device)
    return add_call(before, aten.slice.Tensor, (x, dim, first, last), part)


def _padding(left: TensorMeta, right: TensorMeta, sizes: Sequence[Any]) -> tuple[int, int, int]:
    """The padding of the rows, the inner size and the columns: only those along which an operand or
    the result is contiguous.
    """
    rows, inner, columns = (-size % ALIGNED for size in sizes)
    turned = left.strides[0] == 1 and left.strides[1] != 1
    inner_matters = not turned or (right.strides[0] == 1 and right.strides[1] != 1)
    return rows if turned else 0, inner if inner_matters else 0, columns


def _padded(
    x: fx.Node, by: tuple[int, ...], before: fx.Node, padded: dict[object, fx.Node]
) -> fx.Node:
    """``x`` with zeros at the end of its dims; if ``x`` is a transposed view, pads its source and
    transposes that.
    """
    if not any(by):
        return x
    key = (x, by)
    if key not in padded:
        meta = tensor_of(x)
        source = x.args[0] if name_of(x) in TURNS and meta.ndim == 2 else None
        if isinstance(source, fx.Node) and meta_of(source) is not None and meta.strides[0] == 1:
            straight = _padded(source, by[::-1], before, padded)
            turned = transposed(tensor_of(straight))
            padded[key] = add_call(before, aten.permute.default, (straight, [1, 0]), turned)
        else:
            shape = tuple(size + more for size, more in zip(meta.shape, by, strict=True))
            pads = [amount for more in reversed(by) for amount in (0, more)]
            padded[key] = add_call(
                before, aten.constant_pad_nd.default, (x, pads, 0.0), dense(shape, meta)
            )
    return padded[key]
