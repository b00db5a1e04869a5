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
from primops.shapes import size_hint
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
SHORT = 64
"""What a symbolic size is taken to be at least."""
LARGEST = 1 << 27
"""Maximum bytes of a padded result that is returned. A larger one is computed and sliced in runs of
rows, since it would otherwise be in memory twice.

On an H200, 8192 x 768 x 30522 takes 1.12 ms as a whole, 1.16 ms in runs of 2048 rows and 1.23 ms in
runs of 32 MiB.
"""
TILE = (128, 256)
MULTIPROCESSORS = 132
"""Rows and columns of the library's tiles, and how many the device computes at a time: a run whose
tiles fill the last round as well wastes nothing.
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
    if node.kwargs:
        return False
    if not decide("padded products", node.name, prod(map(_usual, sizes)) >= WORTH):
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
    length = _length_of_runs(node, sizes[0], sizes[2] + columns, is_whole=rows > 0)
    node.replace_all_uses_with(_in_parts(node, operands, (sizes[0], sizes[2]), length))
    node.graph.erase_node(node)
    return True


def _usual(size: Any) -> int:
    """A size, or what a symbolic one usually is at least."""
    return size if isinstance(size, int) else max(size_hint(size) or 0, SHORT)


def _length_of_runs(node: fx.Node, rows: Any, columns: Any, is_whole: bool) -> int | None:
    """How many rows are computed at a time; None for all."""
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    length = rows
    if _is_returned(node) and not is_whole:
        length = _rows_of_run(rows, columns, tensor_of(node).dtype.itemsize)
    chosen = choose("rows of padded runs", node.name, str(length), partial(_is_length, rows))
    return None if int(chosen) >= rows else int(chosen)


def _is_length(rows: Any, text: str) -> bool:
    return text.isdigit() and 1 <= int(text) <= max(1, rows)


def _rows_of_run(rows: Any, columns: Any, itemsize: int) -> int:
    """The rows that are computed at a time: all, or as many whole tiles as fit into LARGEST, of
    those numbers the one with the most rows for each round of tiles.
    """
    most = LARGEST // (columns * itemsize)
    if rows <= most:
        return rows
    if most < TILE[0]:
        return max(most, 1)
    across = -(-columns // TILE[1])
    tiles = range(1, most // TILE[0] + 1)
    best = max(tiles, key=lambda count: (count / -(-count * across // MULTIPROCESSORS), count))
    return best * TILE[0]


def _is_returned(node: fx.Node) -> bool:
    """Whether the value, or a reshape of it, is a result of the graph."""
    return any(
        user.op == "output" or (name_of(user) in VIEWS and _is_returned(user))
        for user in node.users
    )


def _in_parts(
    node: fx.Node, operands: Sequence[Any], shape: tuple[Any, Any], length: int | None
) -> fx.Node:
    """The product of padded operands without the padding, ``length`` rows at a time."""
    *bias, left, right = operands
    if length is None:
        return _product(node, operands, shape)
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
    the result is contiguous, and of known size.
    """
    rows, inner, columns = (-size % ALIGNED if isinstance(size, int) else 0 for size in sizes)
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
