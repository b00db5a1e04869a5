"""Follows chains of view ops in a functional graph to the origin of a value's memory."""

from __future__ import annotations

import operator
from typing import Any

import symshapes
import torch
from symshapes import is_nested_int, is_symbolic

from aotgrad.effect_plan import ViewStep

aten = torch.ops.aten


def is_view_op(target: Any) -> bool:
    """Whether an op's results alias its first operand according to its schema."""
    return isinstance(target, torch._ops.OpOverload) and target.is_view


def view_source(node: torch.fx.Node, *, unsafe: bool = False) -> torch.fx.Node | None:
    """The node that ``node`` is a view of, or None.

    ``unsafe``: also count ops that may share memory although their schema hides it.
    """
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        producer = node.args[0]
        assert isinstance(producer, torch.fx.Node)
        return view_source(producer, unsafe=unsafe)
    if is_view_op(node.target) or (
        unsafe and node.target in (aten._unsafe_view.default, aten._reshape_alias.default)
    ):
        base = node.args[0]
        assert isinstance(base, torch.fx.Node)
        return base
    return None


def view_root(node: torch.fx.Node, *, unsafe: bool = False) -> torch.fx.Node:
    """The node whose memory ``node`` views; the node itself if it is not a view."""
    source = view_source(node, unsafe=unsafe)
    while source is not None:
        node, source = source, view_source(source, unsafe=unsafe)
    return node


def view_chain(
    node: torch.fx.Node, stop: torch.fx.Node | None = None
) -> tuple[torch.fx.Node, tuple[ViewStep, ...]]:
    """The root of ``node`` (or ``stop`` if it is on the way), and the view steps from there to
    ``node``.
    """
    steps: list[ViewStep] = []
    while node is not stop:
        source = view_source(node)
        if source is None:
            break
        item = None
        if node.target is operator.getitem:
            item = node.args[1]
            node = node.args[0]  # type: ignore[assignment]
        assert isinstance(item, int | None) and isinstance(node.target, torch._ops.OpOverload)
        args = tuple(_plain(a) for a in node.args[1:])
        kwargs = tuple((k, _plain(v)) for k, v in node.kwargs.items())
        steps.append(ViewStep(node.target, args, kwargs, item))
        node = source
    return node, tuple(reversed(steps))


def steps_between(base: torch.fx.Node, node: torch.fx.Node) -> tuple[ViewStep, ...] | None:
    """The view ops that lead from ``base`` to ``node``, or None. Two views of one node with equal
    steps are equal.
    """
    root, steps = view_chain(node, base)
    if root is base:
        return steps
    base_root, base_steps = view_chain(base)
    if base_root is not root or steps[: len(base_steps)] != base_steps:
        return None
    return steps[len(base_steps) :]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return symshapes.expr_of(value.meta["val"])
    if is_symbolic(value):
        return -1 if is_nested_int(value) else symshapes.expr_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return value
