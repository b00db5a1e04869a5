"""Functional graphs as text."""

from __future__ import annotations

from typing import Any

import torch
from symshapes import expr_of, is_symbolic

from aotgrad.errors import source_line


def graph_text(gm: torch.fx.GraphModule) -> str:
    """One line per node: ``name: dtype[sizes](strides) = target(arguments)``. A comment above names
    each new source line.
    """
    lines = []
    shown = ""
    for node in gm.graph.nodes:
        where = _user_line(node)
        if where and where != shown:
            lines.append(f"# {where}")
            shown = where
        lines.append(_node_text(node))
    return "\n".join(lines) + "\n"


def _node_text(node: torch.fx.Node) -> str:
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    head = f"{node.name}: {value_text(node.meta.get('val'))} = "
    if node.op in ("placeholder", "get_attr"):
        return head + f"{node.op} {node.target}"
    arguments = [_argument(a) for a in node.args] + [
        f"{k}={_argument(v)}" for k, v in node.kwargs.items()
    ]
    made_by = f"  # by {node.meta['rewritten_by']}" if "rewritten_by" in node.meta else ""
    target = getattr(node.target, "__name__", node.target)
    return f"{head}{target}({', '.join(arguments)}){made_by}"


def _argument(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_argument(v) for v in value) + "]"
    return str(value)


def value_text(value: Any) -> str:
    """A fake tensor as ``f32[2, s0](s0, 1)``, a SymInt as its expression."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.").replace("float", "f").replace("int", "i")
        sizes = ", ".join(str(expr_of(s)) for s in value.shape)
        strides = ", ".join(str(expr_of(s)) for s in value.stride())
        return f"{dtype}[{sizes}]({strides})"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(value_text(v) for v in value) + ")"
    return str(expr_of(value)) if is_symbolic(value) else repr(value)


def _user_line(node: torch.fx.Node) -> str:
    lines = source_line(node).splitlines()
    return lines[-1].strip() if lines else ""
