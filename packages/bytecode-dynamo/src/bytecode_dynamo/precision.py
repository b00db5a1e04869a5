"""How many bits of float32 go into products on CUDA devices: a setting of torch, for which kernels and recordings are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .builtins.settings import guard_precision

if TYPE_CHECKING:
    from torch.fx import Node

    from .context import Context

DEVICES = ("cuda",)
_MATRICES = """
    linear matmul mm bmm addmm baddbmm addbmm einsum bilinear tensordot mv addmv chain_matmul multi_dot cdist
    scaled_dot_product_attention multi_head_attention_forward
"""
_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
OPERATORS: dict[str, str] = {**dict.fromkeys(_MATRICES.split(), "matmul"), **dict.fromkeys(_CONVOLUTIONS.split(), "conv")}


def guard_products(ctx: Context) -> None:
    """Guards the precision of each kind of product that the graph has."""
    for operator in sorted({OPERATORS[_name(node)] for node in ctx.graph.graph.nodes if _is_product(node)}):
        guard_precision(ctx, "cuda", operator)


def _is_product(node: Node) -> bool:
    val = node.meta.get("val")
    return (
        _name(node) in OPERATORS and isinstance(val, torch.Tensor) and val.dtype is torch.float32 and val.device.type in DEVICES
    )


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
