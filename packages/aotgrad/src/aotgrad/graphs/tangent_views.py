"""Gradients that are views of a tangent: no graph computes them. In eager, too, they share its
memory.
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


def tangent_view_gradients(joint: Joint) -> set[torch.fx.Node]:
    """The gradients that are views of tangents."""
    tangents = joint.tangents
    symbols = set().union(*map(size_symbols, tangents))
    return {
        g
        for g in joint.gradients
        if isinstance(g, torch.fx.Node) and _is_tangent_view(g, tangents, symbols)
    }


def _is_tangent_view(
    gradient: torch.fx.Node, tangents: list[torch.fx.Node], symbols: set[Any]
) -> bool:
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
