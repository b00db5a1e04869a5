"""Cheaper ways to compute a value again in backward than the op that made it.

A normalisation's output is elementwise in its input once mean and inverse deviation are known, and
those are saved anyway. A log-softmax is elementwise once the row's largest value and the
logarithm of its sum are known; both are small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from aotgrad.tracing.view_chains import is_view_op, view_root

from .passes import is_laid_out_alike

aten = torch.ops.aten
Build = Callable[..., torch.fx.Node]


def add_substitutes(
    graph: torch.fx.Graph, exposed: Collection[torch.fx.Node]
) -> dict[torch.fx.Node, torch.fx.Node]:
    """Adds a cheap equivalent beside each normalisation's output; maps the output to it. No node
    uses them. ``exposed``: nodes whose memory the caller gets to hold.
    """
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.meta.get("is_backward") or "recompute" in node.meta:
            continue
        if node.target is aten._log_softmax.default:
            found |= _log_softmax(graph, node, exposed)
        rule = _RULES.get(node.target)
        if rule is None:
            continue
        parts = {user.args[1]: user for user in node.users}
        if not {0, 1, 2} <= parts.keys() or not _is_precise(parts[1].meta["val"]):
            continue
        out, last = parts[0], node.next
        while last.next in parts.values():
            last = last.next
        with graph.inserting_before(last.next), out.meta["val"].fake_mode:
            build = _builder(graph, out)
            made = rule(build, node, parts[1], parts[2])
            made = None if made is None else _laid_out(build, made, out)
        if made is not None:
            found[out] = made
            # the substitute comes first, so that the order stays topological for both
            made.append(out)
    return found


def _laid_out(build: Build, value: torch.fx.Node, like: torch.fx.Node) -> torch.fx.Node | None:
    """``value`` with the strides of ``like``, or None if no copy has them."""
    if is_laid_out_alike(value, like):
        return value
    copy = build(aten.clone.default, value, memory_format=torch.contiguous_format)
    return copy if is_laid_out_alike(copy, like) else None


def _is_precise(statistics: torch.Tensor) -> bool:
    return statistics.dtype in (torch.float32, torch.float64)


def _log_softmax(
    graph: torch.fx.Graph, node: torch.fx.Node, exposed: Collection[torch.fx.Node]
) -> dict[torch.fx.Node, torch.fx.Node]:
    """The rule for logits that the caller holds and may write to: a copy of them is kept if it is
    smaller than the result because its dtype is narrower.
    """
    x, dim, _ = node.args
    assert isinstance(x, torch.fx.Node)
    steps, source = [], x
    while is_view_op(source.target) or (
        source.target is aten._to_copy.default and source.kwargs.keys() <= {"dtype"}
    ):
        steps.append(source)
        source = source.all_input_nodes[0]
        if len(steps[-1].all_input_nodes) > 1 or not isinstance(source.meta["val"], torch.Tensor):
            return {}
    narrow, wide = source.meta["val"], node.meta["val"]
    is_smaller = narrow.dtype.itemsize < wide.dtype.itemsize and x.meta["val"].dtype is wide.dtype
    if not is_smaller or not _is_precise(wide) or x.meta["val"].dim() == 0:
        return {}
    if view_root(source, unsafe=True) not in exposed:
        return {}
    with graph.inserting_before(node.next), wide.fake_mode:
        forward, again = _builder(graph, node, in_forward=True), _builder(graph, node)
        most = forward(aten.amax.default, x, [dim], True)
        powers = forward(aten.exp.default, forward(aten.sub.Tensor, x, most))
        total = forward(aten.log.default, forward(aten.sum.dim_IntList, powers, [dim], True))
        made = forward(aten.clone.default, source)
        for step in reversed(steps):
            made = again(step.target, made, *step.args[1:], **step.kwargs)
        made = again(aten.sub.Tensor, again(aten.sub.Tensor, made, most), total)
    if not is_laid_out_alike(made, node):
        return {}
    made.append(node)
    return {node: made}


def _builder(graph: torch.fx.Graph, like: torch.fx.Node, in_forward: bool = False) -> Build:
    """Adds calls; the active fake mode computes their metadata."""

    def build(op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        node = graph.call_function(op, args, kwargs)
        node.meta["val"] = op(*values, **kwargs)
        if not in_forward:
            node.meta["is_backward"] = node.meta["is_substitute"] = True
            node.meta["forward_node"] = like.name
        if "stack_trace" in like.meta:
            node.meta["stack_trace"] = like.meta["stack_trace"]
        return node

    return build


def _affine(
    build: Build,
    x: torch.fx.Node,
    mean: torch.fx.Node,
    scale: torch.fx.Node,
    weight: Any,
    bias: Any,
    dtype: torch.dtype,
) -> torch.fx.Node:
    """``(x - mean) * scale * weight + bias`` in the precision of the statistics."""
    x = _cast(build, x, scale.meta["val"].dtype)
    out = build(aten.mul.Tensor, build(aten.sub.Tensor, x, mean), scale)
    if weight is not None:
        out = build(aten.mul.Tensor, out, weight)
    if bias is not None:
        out = build(aten.add.Tensor, out, bias)
    return _cast(build, out, dtype)


def _cast(build: Build, x: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    return x if x.meta["val"].dtype is dtype else build(aten._to_copy.default, x, dtype=dtype)


def _layer_norm(build: Build, node: Any, mean: torch.fx.Node, rstd: torch.fx.Node) -> torch.fx.Node:
    x, _, weight, bias = node.args[:4]
    return _affine(build, x, mean, rstd, weight, bias, node.meta["val"][0].dtype)


def _batch_norm(build: Build, node: Any, mean: torch.fx.Node, rstd: torch.fx.Node) -> torch.fx.Node:
    x, weight, bias = node.args[:3]
    mean, rstd, weight, bias = (
        _trailing(build, v, x.meta["val"].dim() - 2) for v in (mean, rstd, weight, bias)
    )
    return _affine(build, x, mean, rstd, weight, bias, node.meta["val"][0].dtype)


def _group_norm(
    build: Build, node: Any, mean: torch.fx.Node, rstd: torch.fx.Node
) -> torch.fx.Node | None:
    x, weight, bias, batch, channels, _, groups = node.args[:7]
    shape = x.meta["val"].shape
    if not x.meta["val"].is_contiguous() or not all(
        type(s) is int for s in (batch, channels, *shape)
    ):
        return None
    grouped = build(aten.view.default, x, [batch, groups, channels // groups, *shape[2:]])
    dtype = rstd.meta["val"].dtype
    mean, rstd = (_trailing(build, v, len(shape) - 1) for v in (mean, rstd))
    scaled = _affine(build, grouped, mean, rstd, None, None, dtype)
    out = build(aten.view.default, scaled, [*shape])
    for op, vector in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if vector is not None:
            out = build(op, out, _trailing(build, vector, len(shape) - 2))
    return _cast(build, out, node.meta["val"][0].dtype)


def _trailing(build: Build, vector: Any, count: int) -> Any:
    """``vector`` with ``count`` more dimensions of size 1; None stays."""
    for _ in range(count if vector is not None else 0):
        vector = build(aten.unsqueeze.default, vector, -1)
    return vector


_RULES: dict[Any, Callable[..., torch.fx.Node | None]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
}
