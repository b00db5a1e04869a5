"""Prim graphs as text."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from primops.meta import TensorMeta, contiguous_strides
from primops.prim import Prim
from primops.shapes import same_size

DTYPE_NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip


def format_graph(gm: fx.GraphModule) -> str:
    """One line per node: ``name: dtype[sizes] = prim(operands, parameters)``; strides only where
    not contiguous.
    """
    return "\n".join(map(_format_node, gm.graph.nodes)) + "\n"


def format_meta(meta: Any) -> str:
    """``f32[4, s0]``, with strides as ``f32[4, 8]{1, 4}`` when they are not contiguous."""
    if isinstance(meta, TensorMeta):
        name = DTYPE_NAMES.get(meta.dtype, str(meta.dtype).removeprefix("torch."))
        dense = all(map(same_size, meta.strides, contiguous_strides(meta.shape)))
        strides = "" if dense else "{" + ", ".join(map(str, meta.strides)) + "}"
        device = "" if meta.device.type == "cpu" else f"@{meta.device}"
        return f"{name}[{', '.join(map(str, meta.shape))}]{strides}{device}"
    if isinstance(meta, (tuple, list)):
        return f"({', '.join(map(format_meta, meta))})"
    return str(meta)


def _format_node(node: fx.Node) -> str:
    if node.op == "output":
        values = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
        return f"return ({', '.join(map(_format_value, values))})"
    left = f"{node.name}: {format_meta(node.meta.get('val'))}"
    if node.op == "placeholder":
        return f"{left} = input"
    if node.op == "get_attr":
        return f"{left} = constant {node.target}"
    if node.target is operator.getitem:
        return f"{left} = {node.args[0]}[{node.args[1]}]"
    name = node.target.name if isinstance(node.target, Prim) else f"extern {node.target}"
    arguments = [
        *map(_format_value, node.args),
        *(f"{key}={_format_value(value)}" for key, value in node.kwargs.items()),
    ]
    return f"{left} = {name}({', '.join(arguments)})"


def _format_value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES.get(value, str(value).removeprefix("torch."))
    return str(value)
