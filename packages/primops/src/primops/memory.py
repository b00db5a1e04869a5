"""Whose memory a value is: owners of views, and the operators that address memory itself."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from primops import prims
from primops.builder import GraphValue
from primops.errors import ContractError
from primops.prim import Prim

VIEW_PRIMS = frozenset(
    {prims.reshape, prims.permute, prims.slice, prims.broadcast_in_dim, prims.window}
)


def base_value(value: GraphValue) -> GraphValue:
    """The value whose memory ``value`` is."""
    while isinstance(source := value.args[0] if value.args else None, GraphValue) and _is_view(
        value.target, source.target
    ):
        value = source
    return value


def base_node(node: fx.Node) -> fx.Node:
    """The node of the given graph whose memory ``node`` is."""
    while isinstance(source := node.args[0] if node.args else None, fx.Node) and _is_view(
        node.target, source.target
    ):
        node = source
    return node


def _is_view(target: Any, source: Any) -> bool:
    """Whether a result of ``target`` is memory of its first argument, which is a result of
    ``source``.
    """
    if isinstance(target, Prim):
        return target in VIEW_PRIMS
    if target is operator.getitem:
        return isinstance(source, OpOverload) and _gives_alias(source)
    return isinstance(target, OpOverload) and _gives_alias(target)


def _gives_alias(op: OpOverload) -> bool:
    return any(result.alias_info is not None for result in op._schema.returns)


def reads_memory(op: OpOverload) -> bool:
    """Whether the operator addresses memory by strides of its own."""
    return op.name().partition(".")[0] in (
        "aten::as_strided",
        "aten::as_strided_copy",
        "aten::as_strided_scatter",
    )


@dataclass(frozen=True)
class Place:
    """What ``as_strided`` addresses: memory of ``owner`` from ``start`` after its first element, or
    at an absolute ``offset``.

    An input's first element is wherever the caller has it, so an absolute offset into an input
    stays one.
    """

    owner: fx.Node
    start: Any
    offset: Any
    arguments: dict[str, Any]


def place_of(node: fx.Node, op: OpOverload) -> Place:
    """Where ``node`` reads or writes. Raises ContractError for a view whose offset in memory
    ``meta["val"]`` does not tell.
    """
    arguments: dict[str, Any] = {
        **dict(zip((a.name for a in op._schema.arguments), node.args)),
        **node.kwargs,
    }
    given, offset = arguments.pop("self"), arguments.pop("storage_offset", None)
    root = _owner(given)
    owner = given if "src" in arguments else root
    here, there = given.meta["val"], owner.meta["val"]
    if offset is None and given is owner:
        return Place(owner, 0, None, arguments)
    if root.op != "call_function" and offset is not None and owner is root:
        return Place(owner, None, offset, arguments)
    if (
        not isinstance(here, torch.Tensor)
        or here.dtype is not there.dtype
        or (root.op != "call_function" and offset is not None)
    ):
        raise ContractError(
            "C2.3",
            f'where {op} begins in memory is unknown: meta["val"] has no storage offset',
            node,
        )
    start = (
        here.storage_offset()
        if offset is None
        else offset.meta["val"]
        if isinstance(offset, fx.Node)
        else offset
    )
    return Place(owner, start - there.storage_offset(), None, arguments)


def _owner(node: fx.Node) -> fx.Node:
    """``base_node``, except that results of prims have memory of their own."""
    while not isinstance(node.target, Prim) and isinstance(
        source := node.args[0] if node.args else None, fx.Node
    ):
        if not _is_view(node.target, source.target):
            break
        node = source
    return node
