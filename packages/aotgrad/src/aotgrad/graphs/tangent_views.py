"""Gradients that show the memory of a tangent: no graph computes them, as in eager mode, where they
share it.
"""

from __future__ import annotations

from typing import Any

import torch
from symshapes import is_wrapper

from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_source

from .passes import size_symbols

aten = torch.ops.aten
_ADDRESSED = frozenset([aten.as_strided.default, aten.view.dtype])


def tangents_of(joint: Joint) -> list[torch.fx.Node]:
    """The placeholders of the tangents."""
    return list(joint.gm.graph.find_nodes(op="placeholder"))[len(joint.inputs) :]


def gradient_nodes(joint: Joint) -> tuple[Any, ...]:
    """The gradients among a joint graph's outputs."""
    return joint.gm.graph.output_node().args[0][joint.num_values :]  # type: ignore[index, return-value]


def gradients_shown(joint: Joint) -> set[torch.fx.Node]:
    """The gradients that are views of tangents."""
    tangents = tangents_of(joint)
    symbols = set().union(*map(size_symbols, tangents))
    return {
        g
        for g in gradient_nodes(joint)
        if isinstance(g, torch.fx.Node) and _is_shown(g, tangents, symbols)
    }


def _is_shown(gradient: torch.fx.Node, tangents: list[torch.fx.Node], symbols: set[Any]) -> bool:
    node: torch.fx.Node | None = gradient
    while node is not None and node not in tangents:
        if (
            node.target in _ADDRESSED
            or is_wrapper(node.meta["val"])
            or not size_symbols(node) <= symbols
        ):
            return False
        node = view_source(node)
    return node is not None and node is not gradient and not is_wrapper(node.meta["val"])
