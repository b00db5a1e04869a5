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


def base_of(x: Any, *, through_prims: bool = True) -> Any:
    """The graph value, or the node of the given graph, whose memory ``x`` is. Without
    ``through_prims`` results of prims have memory of their own.
    """
    while through_prims or not isinstance(x.target, Prim):
        source: Any = x.args[0] if x.args else None
        if not isinstance(source, (GraphValue, fx.Node)) or not _is_view(x.target, source.target):
            break
        x = source
    return x


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
    aten = torch.ops.aten
    return op.overloadpacket in (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)


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
    """Where ``node`` reads or writes. Raises ContractError when ``meta["val"]`` of a view has no
    storage offset.
    """
    names = [argument.name for argument in op._schema.arguments]
    arguments: dict[str, Any] = {**dict(zip(names, node.args)), **node.kwargs}
    given, offset = arguments.pop("self"), arguments.pop("storage_offset", None)
    root = base_of(given, through_prims=False)
    owner = given if "src" in arguments else root
    here, there = given.meta["val"], owner.meta["val"]
    if offset is None and given is owner:
        return Place(owner, 0, None, arguments)
    in_input = root.op != "call_function" and offset is not None
    if in_input and owner is root:
        return Place(owner, None, offset, arguments)
    if in_input or not isinstance(here, torch.Tensor) or here.dtype is not there.dtype:
        what = f'where {op} begins in memory is unknown: meta["val"] has no storage offset'
        raise ContractError("C2.3", what, node)
    start = here.storage_offset() if offset is None else offset
    start = start.meta["val"] if isinstance(start, fx.Node) else start
    return Place(owner, start - there.storage_offset(), None, arguments)
