"""The contract C1 of captured graphs."""

from __future__ import annotations

import operator
import types
from typing import Any

import torch
from symshapes import FakeTensor, inner_tensor, is_fake
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import ContractError
from bytecode_dynamo.function_table import FUNCTIONS

from .builder import free_symbols
from .opaque import OpaqueCall

_MODES = (torch._C._set_grad_enabled,)


def check_captured(gm: GraphModule) -> None:
    """Check a captured graph against contract C1; raises ContractError naming the clause and the
    node.

    - C1.1: node kinds, and one output tuple of nodes and constants.
    - C1.2: one placeholder per source.
    - C1.3: every free size symbol is a placeholder, and these come first.
    - C1.4: placeholders say what they are and where they come from.
    - C1.5: calls have a value and the user's lines.
    - C1.6: targets are torch functions, operators, or tensor methods; grad mode changes are
      balanced.
    - C1.7: one fake tensor mode.
    """
    nodes = list(gm.graph.nodes)
    _check_kinds(nodes)
    _check_placeholders([node for node in nodes if node.op == "placeholder"])
    for node in nodes:
        if node.op in ("call_function", "call_method"):
            _check_call(node)
    _check_one_mode(nodes)


def _check_kinds(nodes: list[Node]) -> None:
    for node in nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "get_attr", "output"):
            raise ContractError("C1.1", node, f"has kind {node.op}")
    if not nodes or nodes[-1].op != "output":
        raise ContractError(
            "C1.1", nodes[-1] if nodes else "graph", "there is no output at the end"
        )
    outputs = nodes[-1].args[0]
    if not isinstance(outputs, tuple):
        raise ContractError("C1.1", nodes[-1], "the output is not a tuple")


def _check_placeholders(placeholders: list[Node]) -> None:
    sources: set[str] = set()
    bound: set[Any] = set()
    needed: set[Any] = set()
    tensors_began = False
    for node in placeholders:
        for key in ("val", "source", "static"):
            if key not in node.meta:
                raise ContractError("C1.4", node, f"has no meta[{key!r}]")
        if node.meta["source"] in sources:
            raise ContractError("C1.2", node, f"is a second placeholder for {node.meta['source']}")
        sources.add(node.meta["source"])
        val = node.meta["val"]
        if is_fake(val):
            tensors_began = True
            needed |= free_symbols(val)
        elif isinstance(val, (torch.SymInt, torch.SymFloat)):
            if tensors_began:
                raise ContractError("C1.3", node, "is a size after a tensor")
            bound.add(val.node.expr)
        elif not isinstance(val, (int, float, torch.Generator)):
            raise ContractError("C1.4", node, f"has a value of type {type(val).__name__}")
    missing = {str(symbol) for symbol in needed - bound}
    if missing:
        raise ContractError(
            "C1.3", "placeholders", f"no placeholder for size {', '.join(sorted(missing))}"
        )


def _check_call(node: Node) -> None:
    if "val" not in node.meta:
        raise ContractError("C1.5", node, "has no meta['val']")
    if not node.meta.get("stack_trace"):
        raise ContractError("C1.5", node, "has no meta['stack_trace']")
    if node.op == "call_method":
        if not isinstance(node.target, str) or not hasattr(torch.Tensor, node.target):
            raise ContractError("C1.6", node, f"calls {node.target}, which is not a tensor method")
        return
    if not is_torch_level(node.target):
        raise ContractError("C1.6", node, f"calls {node.target}")


def is_torch_level(target: Any) -> bool:
    """Whether a captured graph may have a call target."""
    if target in _MODES or isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if target is inner_tensor or isinstance(target, OpaqueCall) or FUNCTIONS.is_overridden(target):
        return True
    module = getattr(target, "__module__", None) or ""
    if module == "_operator" or target in vars(operator).values():
        return True
    if isinstance(target, (types.BuiltinFunctionType, types.BuiltinMethodType, type)):
        return True
    return module == "torch" or module.startswith("torch.")


def _check_one_mode(nodes: list[Node]) -> None:
    modes = {
        id(leaf.fake_mode)
        for node in nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, FakeTensor)
    }
    if len(modes) > 1:
        raise ContractError("C1.7", "graph", "fake tensors of several modes")
