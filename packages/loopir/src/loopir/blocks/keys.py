"""Numbers for the calls of a functional graph: calls with one number differ in nothing but which
tensors they read.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from primops import ExternPrim, prim_of
from symshapes import expr_of
from torch import fx
from torch._ops import OpOverload

from loopir.ir.expr import is_index_expr
from loopir.patterns.match import VIEWS, name_of

NUMBERS = (int, float, bool, torch.SymInt)
PLAIN = (
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
PARTS = ("select", "slice")
OWN_META = ("donated", "written", "required", "host", "recompute")
"""What ties a node to its graph; a node with any of these is in no block."""


class _Alone(Exception):
    """A call that equals no other."""


class CallNumbers:
    """Numbers for the calls of one graph. A number stands for the whole key, not for its hash.
    ``operands`` has the operands of each numbered call that are no numbers themselves, in the order
    of the arguments.
    """

    def __init__(self) -> None:
        self.operands: dict[fx.Node, list[fx.Node]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[fx.Node, int] = {}

    def of(self, node: fx.Node) -> int:
        """The number of a call; one of its own for a call that can't be part of a block."""
        self.operands[node] = [x for x in node._input_nodes if not _is_number(x)]
        try:
            key: Hashable = self._call(node)
        except _Alone:
            key = node
        return self._numbers.setdefault(key, len(self._numbers))

    def _call(self, node: fx.Node) -> Hashable:
        if not _may_repeat(node.target) or any(name in node.meta for name in OWN_META):
            raise _Alone
        inputs = {operand: place for place, operand in enumerate(self.operands[node])}
        read = tuple(map(self.value, inputs))
        arguments = self._argument((node.args, node.kwargs), inputs)
        return node.target, arguments, read, self.value(node), node.meta.get("rounds_to")

    def _argument(self, argument: Any, inputs: dict[fx.Node, int]) -> Hashable:
        if isinstance(argument, fx.Node):
            if argument in inputs:
                return fx.Node, inputs[argument]
            return self._value(argument.meta["val"])
        if isinstance(argument, list | tuple):
            kind = list if isinstance(argument, list) else tuple
            return kind, *[self._argument(item, inputs) for item in argument]
        if isinstance(argument, dict):
            items = [(name, self._argument(item, inputs)) for name, item in argument.items()]
            return dict, *items
        return self._value(argument)

    def value(self, node: fx.Node) -> int:
        """What later stages may know of a node's value, as a number."""
        known = self._values.get(node)
        if known is None:
            if node.op == "get_attr":  # patterns look at what a constant holds
                raise _Alone
            key = self._value(node.meta.get("val")), bool(node.meta.get("static"))
            known = self._values[node] = self._numbers.setdefault(key, len(self._numbers))
        return known

    def _value(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise _Alone
            sizes = (*value.shape, *value.stride())
            if not all(type(size) is int for size in sizes):
                sizes = tuple(map(self._value, sizes))
            return torch.Tensor, value.dim(), sizes, value.dtype, value.device
        if isinstance(value, torch.SymInt):
            if not _is_known(value):
                raise _Alone
            return torch.SymInt, expr_of(value)
        if isinstance(value, list | tuple):
            return tuple, *map(self._value, value)
        if isinstance(value, float):
            return float, value.hex()
        if not isinstance(value, PLAIN):
            raise _Alone
        return type(value), value


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    """The calls that may be parts of blocks, in order. Numbers that depend on no call's tensor, and
    parts of inputs, such as one step of a sequence, are operands of blocks.
    """
    outside: set[fx.Node] = set()
    calls = []
    for node in graph.nodes:
        if node.op == "placeholder":
            outside.add(node)
        elif node.op != "call_function":
            continue
        elif outside.issuperset(node._input_nodes) and (name_of(node) in PARTS or _is_number(node)):
            outside.add(node)
        else:
            calls.append(node)
    return calls


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def _is_known(size: torch.SymInt) -> bool:
    """Whether kernels can compute a size from sizes of inputs that are not negative."""
    expr, env = expr_of(size), size.node.shape_env
    return is_index_expr(expr) and all(
        not env.is_unbacked_symint(free) and env.bounds(free)[0] >= 0 for free in expr.free_symbols
    )


@cache
def _may_repeat(target: Any) -> bool:
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and target.namespace != "_c10d_functional"
        and bool(target._schema.returns)
        and not target._schema.is_mutable
        and torch.Tag.dynamic_output_shape not in target.tags
    )


@cache
def is_view(target: Any) -> bool:
    """Whether a call only shows memory in another way, or takes one of several results."""
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    name = target.name().partition("::")[2].partition(".")[0]
    return name in VIEWS or any(result.alias_info is not None for result in target._schema.returns)


@cache
def is_library_call(target: Any) -> bool:
    """Whether no loop computes the call."""
    if not isinstance(target, OpOverload):
        return False
    return target.namespace != "aten" or isinstance(prim_of(target), ExternPrim)
