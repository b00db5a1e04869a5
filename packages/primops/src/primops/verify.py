"""``check_prims``: the contract C3 of prim graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from primops import prims
from primops.builder import SYMBOLIC, leaves
from primops.errors import ContractError, PrimError
from primops.meta import TensorMeta
from primops.prim import Prim
from primops.promotion import HALF_DTYPES, is_number
from primops.shapes import may_be_same

ANY_DTYPE_TAGS = frozenset({"movement", "creation", "random", "control"})
ANY_DTYPE = frozenset(
    {prims.where, prims.convert, prims.bitcast, prims.index, prims.gather, prims.scatter}
)


def check_prims(gm: fx.GraphModule) -> None:
    """Raises ContractError unless ``gm`` is a prim graph.

    - C3.1 call targets are prims, ``operator.getitem``, or operator overloads that mutate nothing
    - C3.2 a prim's operands are positional and fit its schema, its parameters are keywords
    - C3.3 arithmetic has no float16 or bfloat16 operand
    - C3.4 every node has ``meta["val"]`` of the stated form, and a prim's agrees with its meta rule
    - C3.5 parameters hold sizes, not nodes; no size arithmetic is left
    - C3.6 the output is a tuple and has one ``meta["val"]`` entry per element
    - C3.7 no effects: seeds come from ``random_seed`` nodes
    - C3.9 graphs that nodes call are prim graphs
    """
    output: fx.Node | None = None
    for node in gm.graph.nodes:
        if node.op == "output":
            output = node
        elif node.op == "call_function":
            _check_call(node)
        elif node.op not in ("placeholder", "get_attr"):
            raise ContractError("C3.1", f"{node.op} is not allowed", node)
        if node.op != "output":
            _check_meta(node)
    if output is None:
        raise ContractError("C3.6", "the graph has no output")
    _check_output(output)


def _check_call(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, Prim):
        for check in PRIM_CHECKS:
            check(node, target)
    elif isinstance(target, OpOverload):
        if target._schema.is_mutable:
            raise ContractError("C3.1", f"{target} mutates its arguments", node)
    elif target is not operator.getitem:
        clause = "C3.5" if isinstance(node.meta.get("val"), SYMBOLIC) else "C3.1"
        raise ContractError(
            clause, f"target {target} is neither a prim nor an operator overload", node
        )


def _check_operands(node: fx.Node, prim: Prim) -> None:
    for operand in node.args:
        if not isinstance(operand, fx.Node) and not is_number(operand):
            raise ContractError(
                "C3.2", f"operand {operand!r} of {prim.name} is neither a node nor a number", node
            )
        if (
            isinstance(operand, fx.Node)
            and not isinstance(val := operand.meta.get("val"), TensorMeta)
            and not is_number(val)
        ):
            raise ContractError(
                "C3.2", f"operand {operand} of {prim.name} is neither a tensor nor a size", node
            )
    for name, value in node.kwargs.items():
        if any(isinstance(leaf, fx.Node) for leaf in leaves(value)):
            raise ContractError("C3.5", f"parameter {name} of {prim.name} holds a node", node)
        if isinstance(value, fx.GraphModule):
            check_prims(value)


def _check_half(node: fx.Node, prim: Prim) -> None:
    is_store = prim is prims.index_put and not node.kwargs.get("accumulate")
    if is_store or prim in ANY_DTYPE or prim.tags & ANY_DTYPE_TAGS:
        return
    for operand in node.all_input_nodes:
        if operand.meta["val"].dtype in HALF_DTYPES:
            raise ContractError("C3.3", f"{prim.name} on {operand.meta['val'].dtype}", node)


def _check_inferred(node: fx.Node, prim: Prim) -> None:
    operands = tuple(x.meta["val"] if isinstance(x, fx.Node) else x for x in node.args)
    try:
        inferred: Any = prim.infer(operands, dict(node.kwargs))
    except PrimError as error:
        raise ContractError("C3.2", str(error), node) from error
    meta: Any = node.meta.get("val")
    are_several = isinstance(inferred, tuple) and isinstance(meta, tuple)
    for stated, wanted in zip(meta, inferred) if are_several else [(meta, inferred)]:
        _check_agrees(node, stated, wanted)


def _check_agrees(node: fx.Node, meta: Any, inferred: Any) -> None:
    if not isinstance(meta, TensorMeta):
        raise ContractError("C3.4", f"meta is {meta!r}", node)
    same = may_be_same(meta.shape, inferred.shape)
    if not same or meta.dtype is not inferred.dtype or meta.device != inferred.device:
        raise ContractError("C3.4", f"meta is {meta}, the meta rule gives {inferred}", node)


def _check_seed(node: fx.Node, prim: Prim) -> None:
    seed: Any = node.args[0] if prim in (prims.uniform, prims.uniform16) else None
    is_call = isinstance(seed, fx.Node) and seed.op == "call_function"
    if is_call and seed.target is not prims.random_seed:
        raise ContractError("C3.7", f"the seed is {seed.target}", node)


PRIM_CHECKS: tuple[Callable[[fx.Node, Prim], None], ...] = (
    _check_operands,
    _check_half,
    _check_inferred,
    _check_seed,
)


def _check_meta(node: fx.Node) -> None:
    if "val" not in node.meta:
        raise ContractError("C3.4", 'no meta["val"]', node)
    if not _is_meta(node.meta["val"]):
        raise ContractError("C3.4", f"meta is a {type(node.meta['val']).__name__}", node)


def _is_meta(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_meta, value))
    return (
        value is None
        or isinstance(value, (TensorMeta, torch.device, torch.dtype))
        or is_number(value)
    )


def _check_output(node: fx.Node) -> None:
    outputs, meta = node.args[0], node.meta.get("val")
    if not isinstance(outputs, (tuple, list)):
        raise ContractError("C3.6", "the output is no tuple", node)
    if not isinstance(meta, tuple) or len(meta) != len(outputs) or not _is_meta(meta):
        raise ContractError("C3.6", f"the output has meta {meta!r}", node)
    for value, expected in zip(outputs, meta):
        actual = value.meta["val"] if isinstance(value, fx.Node) else None
        if isinstance(expected, TensorMeta) and (
            not isinstance(actual, TensorMeta) or actual.dtype is not expected.dtype
        ):
            raise ContractError(
                "C3.6", f"output {value} is {actual}, the caller must receive {expected}", node
            )
