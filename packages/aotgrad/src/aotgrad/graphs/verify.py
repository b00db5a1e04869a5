"""The checker of contract C2 (functional graphs)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from symshapes import FakeTensor, expr_of, is_symbolic

from aotgrad.errors import ContractError
from aotgrad.tracing.sizes import SIZE_OPS

from .passes import size_symbols

_TARGETS = SIZE_OPS | {operator.getitem}


def check_functional(gm: torch.fx.GraphModule) -> None:
    """Raises ContractError unless ``gm`` is a functional ATen graph.

    - C2.1 every target is an OpOverload, ``getitem`` or size arithmetic;
    - C2.2 no target writes to its operands;
    - C2.3 every node has ``meta["val"]``, its fakes of one mode;
    - C2.4 the output is a tuple of nodes, ints or None;
    - C2.5 every size symbol is bound by a node before its use, and no SymInt stands in ``args``;
    - C2.7 a ``get_attr`` node names a tensor of the module.

    C2.6 holds because of C2.2; C2.8 asks only what is known.
    """
    modes: set[Any] = set()
    bound: set[Any] = set()
    for node in gm.graph.nodes:
        if node.op == "output":
            _check_output(node)
            continue
        _check_target(gm, node)
        _check_arguments(node)
        for fake in _fakes(node):
            modes.add(fake.fake_mode)
        if len(modes) > 1:
            raise ContractError("C2.3", "fakes of two modes in one graph", node=node)
        _bind(node, bound)
    for node in gm.graph.nodes:
        unbound = size_symbols(node) - bound
        if unbound:
            raise ContractError(
                "C2.5", f"no node binds the size symbol {min(map(str, unbound))}", node=node
            )


def _check_target(gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    if "val" not in node.meta:
        raise ContractError("C2.3", "a node has no meta['val']", node=node)
    if node.op == "placeholder":
        return
    if node.op == "get_attr":
        found = gm
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        if not isinstance(found, torch.Tensor):
            raise ContractError(
                "C2.7", "a get_attr node does not name a tensor of the module", node=node
            )
        return
    if node.op != "call_function":
        raise ContractError("C2.1", f"{node.op} nodes are not functional ATen", node=node)
    if isinstance(node.target, torch._ops.OpOverload):
        if node.target._schema.is_mutable:
            raise ContractError("C2.2", f"{node.target} writes to its operands", node=node)
    elif node.target not in _TARGETS:
        raise ContractError(
            "C2.1", f"{node.target} is neither an OpOverload nor size arithmetic", node=node
        )


def _check_arguments(node: torch.fx.Node) -> None:
    for leaf in _leaves((node.args, node.kwargs)):
        if is_symbolic(leaf):
            raise ContractError(
                "C2.5", "a SymInt stands in args; use the node that computes it", node=node
            )
        if isinstance(leaf, torch.Tensor):
            raise ContractError("C2.7", "a tensor stands in args; use get_attr", node=node)


def _check_output(node: torch.fx.Node) -> None:
    (values,) = node.args
    if not isinstance(values, tuple):
        raise ContractError("C2.4", "the output is not a tuple", node=node)
    for value in values:
        if not (value is None or isinstance(value, (torch.fx.Node, int))):
            raise ContractError("C2.4", f"{value!r} is not a node, an int or None", node=node)


def _bind(node: torch.fx.Node, bound: set[Any]) -> None:
    value = node.meta["val"]
    is_source = node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload)
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if is_symbolic(part) and is_source:
            bound |= _bindable(expr_of(part))
        elif isinstance(part, FakeTensor) and node.op == "call_function":
            # an op whose result has a data-dependent size binds that size
            bound |= {
                s for s in size_symbols(node) if part.fake_mode.shape_env.is_unbacked_symint(s)
            }


def _bindable(expr: Any) -> set[Any]:
    return {expr} if expr.is_Symbol else set(expr.free_symbols) if expr.is_Relational else set()


def _fakes(node: torch.fx.Node) -> Iterator[FakeTensor]:
    return (leaf for leaf in _leaves(node.meta["val"]) if isinstance(leaf, FakeTensor))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _leaves(v)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, slice):
        yield from _leaves([value.start, value.stop, value.step])
    else:
        yield value
