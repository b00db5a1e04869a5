"""Constant folding, and batch norms folded into the convolutions before them."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch
from symshapes.choices import decide
from torch import fx

from .match import (
    add_call,
    add_constant,
    apply_to_calls,
    arguments_of,
    constant_of,
    is_pure,
    meta_of,
    name_of,
    only_user,
)

BATCH_NORMS = {
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
    "batch_norm",
    "cudnn_batch_norm",
}
CHEAP = {"arange", "full", "zeros", "ones", "scalar_tensor"}
MAX_GROWTH = 1 << 16
aten = torch.ops.aten


def fold_constants(gm: fx.GraphModule, creation: bool = False) -> int:
    """Evaluates calls whose operands are all constants, unless the result is much larger than the
    operands; returns how many.

    With ``creation``, small tensors that the graph creates from numbers (masks, index tables) also
    count as constants.
    """
    known: dict[fx.Node, Any] = {}
    count = 0
    for node in list(gm.graph.nodes):
        tensor = constant_of(gm, node)
        if tensor is not None:
            known[node] = tensor
        if (
            node.op != "call_function"
            or not is_pure(node.target)
            or not all(n in known for n in node.all_input_nodes)
        ):
            continue
        if not node.all_input_nodes and not (creation and _is_small_creation(node)):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
        with torch.no_grad():
            known[node] = node.target(*args, **kwargs)
        if _is_worth_keeping(node, known[node], known, creation):
            constant = add_constant(gm, known[node], node)
            known[constant] = known[node]
            node.replace_all_uses_with(constant)
            count += 1
    return count


def _is_worth_keeping(node: fx.Node, value: object, known: dict, creation: bool) -> bool:
    """Whether a folded value becomes a constant: views stay views, and ranges and filled tensors
    stay calls, since loops compute them at no cost. A constant that only folded calls read is
    erased later.
    """
    if (
        not isinstance(value, torch.Tensor)
        or value.layout is not torch.strided
        or name_of(node) in CHEAP
    ):
        return False
    if not creation and not value.is_floating_point():
        return False
    if any(
        isinstance(t := known[n], torch.Tensor) and _shares(t, value) for n in node.all_input_nodes
    ):
        return False
    total = sum(t.numel() for n in node.all_input_nodes if isinstance(t := known[n], torch.Tensor))
    is_small = value.numel() <= max(total, MAX_GROWTH)
    return decide("folded constants", node.name, is_small, numbered=True)


def _is_small_creation(node: fx.Node) -> bool:
    meta = meta_of(node)
    sizes = (
        meta.shape
        if meta is not None and not name_of(node).startswith("empty")
        else (MAX_GROWTH + 1,)
    )
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= MAX_GROWTH


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def fold_batch_norms(gm: fx.GraphModule) -> int:
    """Replaces ``batch_norm(convolution(x, w, b))`` by one convolution, in evaluation with constant
    weights and statistics.
    """
    return apply_to_calls(gm, {"convolution": partial(_fold_batch_norm, gm)})


def _fold_batch_norm(gm: fx.GraphModule, conv: fx.Node) -> bool:
    norm = only_user(conv)
    given = norm_in_evaluation(norm, conv) if norm is not None else None
    if norm is None or given is None:
        return False
    (result,) = norm.users
    x, weight, bias, *parameters = arguments_of(conv)
    tensors = [constant_of(gm, n) for n in (weight, given["running_mean"], given["running_var"])]
    others = [constant_of(gm, n) for n in (bias, given["weight"], given["bias"])]
    asked = (bias, given["weight"], given["bias"])
    if any(t is None for t in tensors) or any(
        t is None for t, n in zip(others, asked, strict=True) if n is not None
    ):
        return False
    turned, groups = bool(parameters[3]), int(parameters[5])
    w, b = folded_weights(tensors, others, float(given["eps"]), turned, groups)
    args = (x, add_constant(gm, w, conv), add_constant(gm, b, conv), *parameters)
    fused = add_call(norm, aten.convolution.default, args, conv.meta["val"])
    result.replace_all_uses_with(fused)
    for dead in (result, norm, conv):
        gm.graph.erase_node(dead)
    return True


def norm_in_evaluation(norm: fx.Node, x: fx.Node) -> dict[str, Any] | None:
    """The arguments, by name, of a batch norm of ``x`` that uses given statistics and of which only
    the first result is read.
    """
    if name_of(norm) not in BATCH_NORMS or norm.args[0] is not x:
        return None
    names = [argument.name for argument in norm.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, arguments_of(norm), strict=True))
    only_first = [user.args[1:] for user in norm.users if user.target is operator.getitem] == [
        (0,)
    ] and len(norm.users) == 1
    if only_first and meta_of(x) is not None and not (given.get("training") or given.get("train")):
        return given
    return None


def folded_weights(
    tensors: list, others: list, eps: float, transposed: bool, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the folded convolution, computed in at least float32.

    ``tensors``: weight, mean, variance; ``others``: convolution bias, scale and shift, each of
    which may be None.
    """
    weight, mean, variance = tensors
    bias, gamma, beta = others
    wide = torch.promote_types(weight.dtype, torch.float32)
    with torch.no_grad():
        scale = (variance.to(wide) + eps).rsqrt()
        scale = scale if gamma is None else scale * gamma.to(wide)
        shift = -mean.to(wide) if bias is None else bias.to(wide) - mean.to(wide)
        shift = shift * scale if beta is None else shift * scale + beta.to(wide)
        # [in, out / groups, ...]: the channels of each group are one block of rows
        if transposed:
            parts = weight.to(wide).unflatten(0, (groups, -1))
            blocks = scale.view(groups, 1, -1, *(1 for _ in weight.shape[2:]))
            weight_out = (parts * blocks).flatten(0, 1)
        else:
            weight_out = weight.to(wide) * scale.view(-1, *(1 for _ in weight.shape[1:]))
    return weight_out.to(weight.dtype), shift.to(weight.dtype)
