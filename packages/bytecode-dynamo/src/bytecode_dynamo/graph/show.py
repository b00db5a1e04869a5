"""Captured graphs and guards as text."""

from __future__ import annotations

from typing import Any

import torch
from symshapes import FakeTensor
from torch.fx import GraphModule, Node


def format_value(val: Any) -> str:
    """``f32[s0, 16] cpu`` for a fake tensor."""
    if isinstance(val, FakeTensor):
        sizes = ", ".join(str(size) for size in val.shape)
        return f"{str(val.dtype).removeprefix('torch.')}[{sizes}] {val.device}"
    if isinstance(val, (tuple, list)):
        return f"({', '.join(format_value(item) for item in val)})"
    return str(val)


def _argument(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_argument(item) for item in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({_argument(value.start)}, {_argument(value.stop)}, {_argument(value.step)})"
    return repr(value)


def _target(target: Any) -> str:
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", str(target))
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    home = (
        "operator"
        if module == "_operator"
        else "torch"
        if module.startswith("torch._C") or not module
        else module
    )
    return f"{home}.{name}"


def format_source(gm: GraphModule) -> str:
    """A graph as Python source: ``forward`` as a function, runnable if its names are in scope."""
    return gm.code.strip()


def format_graph(gm: GraphModule) -> str:
    """A captured graph, one line per node, with the sources of inputs and the values' metadata."""
    lines = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            lines.append(
                f"{node.name} = input {node.meta.get('source', node.target)}  # "
                f"{format_value(node.meta.get('val'))}"
            )
        elif node.op == "output":
            lines.append(f"return {_argument(node.args[0])}")
        elif node.op == "get_attr":
            lines.append(
                f"{node.name} = constant {node.target}  # {format_value(node.meta.get('val'))}"
            )
        else:
            args = [_argument(arg) for arg in node.args] + [
                f"{key}={_argument(value)}" for key, value in node.kwargs.items()
            ]
            if node.op == "call_method":
                text = f"{args[0]}.{node.target}({', '.join(args[1:])})"
            else:
                text = f"{_target(node.target)}({', '.join(args)})"
            lines.append(f"{node.name} = {text}  # {format_value(node.meta.get('val'))}")
            for number, inner in enumerate(getattr(node.target, "graphs", ())):
                lines += [
                    f"  {node.name}, graph {number}:",
                    *(f"    {line}" for line in format_graph(inner).splitlines()),
                ]
    return "\n".join(lines)
