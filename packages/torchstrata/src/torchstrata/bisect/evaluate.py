"""The meaning of captured and functional graphs: node by node on real tensors, also in float64."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from primops import Prim
from symshapes import LazyGraphModule
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

OnNode = Callable[[Node, Any], None]
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
"""The dtype in which a value is computed exactly."""
_CONVERSIONS = ("float", "half", "bfloat16")


def widened(value: Any) -> Any:
    """A tensor in float64 or complex128, which requires grad as before; a dtype likewise; anything
    else as it is.
    """
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        wide = value.detach().to(WIDE[value.dtype])
        return wide.requires_grad_(value.requires_grad)
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def run_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    *,
    wide: bool = False,
    on_node: OnNode | None = None,
) -> tuple[Any, ...]:
    """Runs a captured graph (C1) or a functional one (C2) on real inputs, in placeholder order.

    ``wide``: computes in float64 what the graph computes in narrower dtypes; the inputs are given
    so. ``on_node`` is called with each node and its value, in order. Raises what the calls raise.
    """
    env: dict[Node, Any] = {}
    given = iter(inputs)

    def lookup(argument: Any) -> Any:
        found = map_arg(argument, env.__getitem__)
        return pytree.tree_map(widened, found) if wide and found is not None else found

    for node in gm.graph.nodes:
        if node.op == "output":
            return tuple(map_arg(node.args[0], env.__getitem__))
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            value: Any = operator.attrgetter(str(node.target))(gm)
            env[node] = widened(value) if wide else value
        else:
            env[node] = _call(node, lookup(node.args), lookup(node.kwargs), wide)
        if on_node is not None:
            on_node(node, env[node])
    raise ValueError("the graph has no output")


def _call(node: Node, args: Any, kwargs: Any, wide: bool) -> Any:
    if node.op == "call_method":
        name = "double" if wide and node.target in _CONVERSIONS else str(node.target)
        return getattr(args[0], name)(*args[1:], **kwargs)
    target: Any = node.target
    if isinstance(target, Prim):
        target = target.reference
    return target(*args, **kwargs)


def copy_graph(gm: GraphModule) -> GraphModule:
    """A graph of its own for a pass to change; values in ``meta`` and constants are shared."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copied = LazyGraphModule(gm, graph)
    copied.meta = dict(gm.meta)
    return copied


def fresh(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs: leaves with the strides of the originals."""
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided:
        return x.detach().clone().requires_grad_(x.requires_grad)
    copied = torch.empty_like(x, memory_format=torch.preserve_format)
    if copied.stride() != x.stride() and all(
        step for step, size in zip(x.stride(), x.shape) if size > 1
    ):
        span = (
            1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride()))
            if x.numel()
            else 0
        )
        base = torch.empty(max(span, 0), dtype=x.dtype, device=x.device)
        copied = base.as_strided(x.shape, x.stride())
    with torch.no_grad():
        copied.copy_(x.detach())
    return copied.detach().requires_grad_(x.requires_grad)
