"""What a value costs to keep, and whether it may be computed twice."""

from __future__ import annotations

import math
import operator
from enum import Enum, auto
from typing import Any

import torch
from symshapes import DataDependentError, hint_of, is_symbolic

from .passes import is_random
from .views import view_source

aten = torch.ops.aten


class Recompute(Enum):
    """How willing we are to compute a node again in backward."""

    FREE = auto()  # views and size arithmetic: nothing is computed
    CHEAP = auto()  # elementwise work, fills, casts, short reductions: fuses into its consumer
    NEVER = auto()  # random, or as heavy as the layer itself


_CHEAP_OPS = frozenset(
    [
        aten._to_copy,
        aten.clone,
        aten.full,
        aten.full_like,
        aten.zeros,
        aten.zeros_like,
        aten.ones,
        aten.ones_like,
        aten.new_zeros,
        aten.new_ones,
        aten.new_full,
        aten.new_empty_strided,
        aten.empty_strided,
        aten.empty_like,
        aten.scalar_tensor,
        aten.arange,
        aten.copy,
        aten.where,
        aten.cat,
        aten.stack,
        aten.constant_pad_nd,
        aten.slice_scatter,
        aten.select_scatter,
        aten.tril,
        aten.triu,
        aten.repeat,
        aten.flip,
        aten.sum,
        aten.mean,
        aten.amax,
        aten.amin,
        aten.any,
        aten.all,
        aten.var,
        aten.var_mean,
        aten.native_layer_norm,
        aten._softmax,
        aten._log_softmax,
    ]
)
_UNKNOWN_SIZE = 4096  # elements assumed along an unbacked dimension


def recompute_class(node: torch.fx.Node) -> Recompute:
    """The class of one node of a functional graph."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return Recompute.FREE if node.target is not operator.getitem else _class_of_producer(node)
    if is_random(node):
        return Recompute.NEVER
    if view_source(node, unsafe=True) is not None:
        return Recompute.FREE
    if torch.Tag.pointwise in node.target.tags or node.target.overloadpacket in _CHEAP_OPS:
        return Recompute.CHEAP
    return Recompute.NEVER


def _class_of_producer(node: torch.fx.Node) -> Recompute:
    producer = node.args[0]
    return recompute_class(producer) if isinstance(producer, torch.fx.Node) else Recompute.FREE


def size_in_bytes(value: Any) -> int:
    """Bytes of a fake tensor's elements, by hints; the lowest cost for a number."""
    if not isinstance(value, torch.Tensor):
        return 8
    elements = math.prod((_hint(s) for s in value.shape), start=1)
    return elements * value.element_size()


def _hint(size: Any) -> int:
    if not is_symbolic(size):
        return int(size)
    try:
        return int(hint_of(size))
    except DataDependentError:
        return _UNKNOWN_SIZE
