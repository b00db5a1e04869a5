"""Which graphs have float32 products, whose precision on CUDA devices is a setting of torch."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

DEVICES = ("cuda",)
_NAMES = """
    linear matmul mm bmm addmm baddbmm addbmm einsum bilinear tensordot mv addmv chain_matmul
    multi_dot cdist scaled_dot_product_attention multi_head_attention_forward
"""
PRODUCTS = frozenset(_NAMES.split())


def has_float32_products(graph: Graph) -> bool:
    """Whether a captured graph has a float32 product, by function name."""
    return any(_is_float32_product(node) for node in graph.nodes)


def _is_float32_product(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name not in PRODUCTS:
        return False
    val = node.meta.get("val")
    return (
        isinstance(val, torch.Tensor) and val.dtype is torch.float32 and val.device.type in DEVICES
    )
