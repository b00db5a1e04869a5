"""What a value costs to keep and to compute again, and whether that is allowed."""

from __future__ import annotations

import math
import operator
from enum import Enum, auto
from typing import Any

import torch
from symshapes import DataDependentError, hint_of, inner_tensors, is_nested_int, is_symbolic

from aotgrad.tracing.functional import tensors_in
from aotgrad.tracing.view_chains import view_source

from .constants import is_random
from .seeded_random import is_seeded

aten = torch.ops.aten


class Recompute(Enum):
    """How willing we are to compute a node again in backward."""

    FREE = auto()  # views and size arithmetic: nothing is computed
    CHEAP = auto()  # elementwise work, fills, casts, short reductions: fuses into its consumer
    HEAVY = auto()  # as heavy as the layer itself: only for a memory budget or a checkpoint
    NEVER = auto()  # random, of a size that depends on data, or an op we know nothing about


_CHEAP_OPS = frozenset([
    aten._to_copy, aten.clone, aten.full, aten.full_like, aten.zeros, aten.zeros_like, aten.ones,
    aten.ones_like,
    aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty_strided, aten.empty_strided,
    aten.empty_like,
    aten.scalar_tensor, aten.arange, aten.copy, aten.where, aten.cat, aten.stack,
    aten.constant_pad_nd, aten.slice_scatter,
    aten.select_scatter, aten.tril_indices, aten.triu_indices, aten.tril, aten.triu, aten.repeat,
    aten.flip, aten.sum,
    aten.mean, aten.amax, aten.amin, aten.any, aten.all, aten.var, aten.var_mean,
    aten.native_layer_norm, aten._softmax,
    aten._log_softmax,
])  # fmt: skip
_UNKNOWN_SIZE = 4096  # elements assumed along an unbacked dimension
# arithmetic in the time that one byte travels: about 10 on a CPU core, 200 on a tensor core
_FLOPS_PER_BYTE = 64
_UNREPEATABLE = frozenset(
    [
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_bitwise,
        torch.Tag.data_dependent_output,
    ]
)


def recompute_class(node: torch.fx.Node) -> Recompute:
    """The class of one node of a functional graph."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return Recompute.FREE if node.target is not operator.getitem else _class_of_producer(node)
    if is_random(node):
        return Recompute.NEVER
    if view_source(node, unsafe=True) is not None:
        return Recompute.FREE
    if (
        torch.Tag.pointwise in node.target.tags
        or node.target.overloadpacket in _CHEAP_OPS
        or is_seeded(node)
    ):
        return Recompute.CHEAP
    is_pure = node.target.namespace == "aten" and not _UNREPEATABLE.intersection(node.target.tags)
    return Recompute.HEAVY if is_pure else Recompute.NEVER


def _class_of_producer(node: torch.fx.Node) -> Recompute:
    producer = node.args[0]
    return recompute_class(producer) if isinstance(producer, torch.fx.Node) else Recompute.FREE


def size_in_bytes(value: Any) -> int:
    """Bytes of a fake tensor's elements, by hints; the lowest cost for a number."""
    if not isinstance(value, torch.Tensor):
        return 8
    return _elements(value) * value.element_size()


def recompute_cost(node: torch.fx.Node) -> int:
    """An estimate of the time to compute a node again, as the bytes that could be moved
    meanwhile.
    """
    kind = recompute_class(node)
    if kind is Recompute.FREE or node.target is operator.getitem or _widens(node):
        return 0
    operands = (a.meta["val"] for a in node.all_input_nodes)
    read = max((size_in_bytes(v) for v in operands if isinstance(v, torch.Tensor)), default=0)
    moved = max(read, sum(size_in_bytes(t) for t in tensors_in(node.meta["val"])))
    return moved if kind is Recompute.CHEAP else moved + _flops(node) // _FLOPS_PER_BYTE


def _widens(node: torch.fx.Node) -> bool:
    """Whether a node casts floats to a wider type: loops do that as they load the narrow one, which
    are fewer bytes than the result.
    """
    if node.target is not aten._to_copy.default or node.kwargs.keys() - {"dtype"}:
        return False
    narrow, wide = node.all_input_nodes[0].meta["val"].dtype, node.meta["val"].dtype
    return narrow.is_floating_point and wide.is_floating_point and narrow.itemsize < wide.itemsize


_OTHER_PRODUCTS = frozenset([
    aten.mv, aten.addmv, aten.dot, aten.vdot, aten.addbmm, aten._int_mm, aten._scaled_mm,
    aten._grouped_mm,
    aten.linear_backward, aten._cudnn_rnn_backward, aten.mkldnn_rnn_layer_backward,
    aten._cdist_backward,
])  # fmt: skip


def is_product(node: torch.fx.Node) -> bool:
    """Whether a node is a matrix product, convolution, recurrent layer or attention, or computes
    gradients of one.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target.overloadpacket in _OTHER_PRODUCTS or _flops(node) > 0


def _flops(node: torch.fx.Node) -> int:
    """Arithmetic of a matrix product, convolution, its gradients, or attention; 0 for others."""
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    operands = [a.meta["val"] for a in node.args if isinstance(a, torch.fx.Node)]
    out = next(tensors_in(node.meta["val"]), None)
    if out is None or not operands:
        return 0
    elements = _elements(out)
    if packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        return 2 * elements * _hint(operands[-1].shape[-2])
    if packet is aten.convolution:
        weight = operands[1]
        return 2 * elements * _elements(weight) // max(_hint(weight.shape[0]), 1)
    if packet is aten.convolution_backward:
        gradient, weight = operands[0], operands[2]
        wanted = sum(bool(each) for each in node.args[-1][:2])  # type: ignore[index,arg-type]
        return (
            2 * wanted * _elements(gradient) * _elements(weight) // max(_hint(weight.shape[0]), 1)
        )
    if "attention" in str(packet) and len(operands) >= 3:
        return 4 * elements * _hint(operands[1].shape[-2])
    return 0


def _elements(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.jagged:
        return sum(map(_elements, inner_tensors(tensor)))
    return math.prod((_hint(s) for s in tensor.shape), start=1)


def _hint(size: Any) -> int:
    if not is_symbolic(size):
        return int(size)
    try:
        return _UNKNOWN_SIZE if is_nested_int(size) else int(hint_of(size))
    except DataDependentError:
        return _UNKNOWN_SIZE
