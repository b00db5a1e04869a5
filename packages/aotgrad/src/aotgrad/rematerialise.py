"""Cheaper ways to compute a value again in backward than the op that made it.

A normalisation's output is elementwise in its input once mean and inverse deviation are known, and those are saved anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from symshapes import FakeTensor

aten = torch.ops.aten
Build = Callable[..., torch.fx.Node]


def add_substitutes(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Adds a cheap equivalent beside each normalisation's output; maps the output to it. No node uses them."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        rule = _RULES.get(node.target)
        if rule is None or node.meta.get("is_backward") or "recompute" in node.meta:
            continue
        parts = {user.args[1]: user for user in node.users}
        if not {0, 1, 2} <= parts.keys() or not _is_precise(parts[1].meta["val"]):
            continue
        out, last = parts[0], node.next
        while last.next in parts.values():
            last = last.next
        with graph.inserting_before(last.next):
            found[out] = rule(_builder(graph, out), node, parts[1], parts[2])
        found[out].append(out)  # the substitute comes first, so that the order stays topological for both
    return found


def _is_precise(statistics: torch.Tensor) -> bool:
    return statistics.dtype in (torch.float32, torch.float64)


def _builder(graph: torch.fx.Graph, like: torch.fx.Node) -> Build:
    def build(op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        node = graph.call_function(op, args, kwargs)
        fake = next(v for v in values if isinstance(v, FakeTensor))
        with fake.fake_mode:
            node.meta["val"] = op(*values, **kwargs)
        node.meta["is_backward"] = node.meta["is_substitute"] = True
        node.meta["forward_node"] = like.name
        if "stack_trace" in like.meta:
            node.meta["stack_trace"] = like.meta["stack_trace"]
        return node

    return build


def _affine(
    build: Build, x: torch.fx.Node, mean: torch.fx.Node, scale: torch.fx.Node, weight: Any, bias: Any, dtype: torch.dtype
) -> torch.fx.Node:
    """``(x - mean) * scale * weight + bias`` in the precision of the statistics."""
    if x.meta["val"].dtype is not mean.meta["val"].dtype:
        x = build(aten._to_copy.default, x, dtype=mean.meta["val"].dtype)
    out = build(aten.mul.Tensor, build(aten.sub.Tensor, x, mean), scale)
    if weight is not None:
        out = build(aten.mul.Tensor, out, weight)
    if bias is not None:
        out = build(aten.add.Tensor, out, bias)
    return out if out.meta["val"].dtype is dtype else build(aten._to_copy.default, out, dtype=dtype)


def _layer_norm(build: Build, node: torch.fx.Node, mean: torch.fx.Node, rstd: torch.fx.Node) -> torch.fx.Node:
    x, _, weight, bias = node.args[:4]
    return _affine(build, x, mean, rstd, weight, bias, node.meta["val"][0].dtype)  # type: ignore[arg-type]


def _batch_norm(build: Build, node: torch.fx.Node, mean: torch.fx.Node, rstd: torch.fx.Node) -> torch.fx.Node:
    x, weight, bias = node.args[:3]
    trailing = x.meta["val"].dim() - 2  # type: ignore[union-attr]

    def per_channel(vector: Any) -> Any:
        for _ in range(trailing if vector is not None else 0):
            vector = build(aten.unsqueeze.default, vector, -1)
        return vector

    vectors = [per_channel(v) for v in (mean, rstd, weight, bias)]
    return _affine(build, x, *vectors, node.meta["val"][0].dtype)  # type: ignore[arg-type]


_RULES: dict[Any, Callable[[Build, torch.fx.Node, torch.fx.Node, torch.fx.Node], torch.fx.Node]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
}
