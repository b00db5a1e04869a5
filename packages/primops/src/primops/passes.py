"""``decompose``: a functional ATen graph (C2) to a prim graph (C3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from primops import prims
from primops.builder import (
    SYMBOLIC,
    Args,
    GraphBuilder,
    GraphValue,
    Params,
    is_effect,
    leaves,
    map_values,
)
from primops.control import Decompose, is_control, lower_control
from primops.decompositions import DEFAULT, RANDOM_OPS, seeded_rule
from primops.errors import ContractError, DecompositionError, PrimopsError, UnknownOpError, locate
from primops.externs import is_declared_extern
from primops.memory import base_of, place_of, reads_memory
from primops.meta import TensorMeta, contiguous
from primops.operand import full, round_to
from primops.prim import Prim, reading_with
from primops.promotion import PRIM_DTYPES, STORED_DTYPES, is_number, number_dtype
from primops.registry import DecompositionTable, Op
from primops.shapes import may_be_same, same_size, size_hint

NUMERICS = ("fast", "eager")


def decompose(
    gm: fx.GraphModule,
    table: DecompositionTable = DEFAULT,
    *,
    keep: Iterable[Op] = (),
    strict: bool = False,
    numerics: str = "fast",
    fallback_random: bool = False,
) -> fx.GraphModule:
    """The prim graph of ``gm``, which is left as it is. A prim graph comes back unchanged in
    meaning.

    Args:
        gm: graph that satisfies C2 (or C3); ``meta["val"]`` may hold fake, meta or real tensors.
        table: the rules; operators without one stay extern calls (``decomposition_report`` lists
            them).
        keep: operators that stay extern calls.
        strict: raise UnknownOpError for an operator that has neither a rule nor a place in
            ``externs``.
        numerics: "fast" skips float32 -> bfloat16 -> float32 between operators, "eager" rounds
            where eager rounds.
        fallback_random: random operators stay ATen calls, so that they draw what eager draws.

    Raises ContractError for a graph outside C2, DecompositionError when a rule fails or disagrees
    with ``meta["val"]``.
    """
    if numerics not in NUMERICS:
        raise PrimopsError(f"numerics is {numerics!r}; choose one of {NUMERICS}")
    keep = tuple(keep)
    kept = [*keep, *(RANDOM_OPS if fallback_random else ())]
    builder = GraphBuilder(fast=numerics == "fast")
    inner = partial(
        decompose, table=table, keep=keep, strict=strict, numerics=numerics,
        fallback_random=fallback_random,
    )  # fmt: skip
    used = table.without(kept) if kept else table
    with reading_with(builder):
        return _Pass(gm, table, used, builder, strict, inner).run()


@dataclass
class _Pass:
    gm: fx.GraphModule
    known: DecompositionTable
    table: DecompositionTable
    builder: GraphBuilder
    strict: bool
    inner: Decompose  # of the graphs of control flow
    env: dict[fx.Node, Any] = field(default_factory=dict)
    inputs: dict[fx.Node, GraphValue] = field(default_factory=dict)
    parts: dict[fx.GraphModule, fx.GraphModule] = field(default_factory=dict)

    def run(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            self.builder.origin = node
            if node.op == "output":
                outputs, meta = self.outputs(node)
                required = [(i, x) for i, x in enumerate(node.args[0]) if _is_required(x)]
                if required:
                    node.meta["required"] = {i: x.meta["required"] for i, x in required}
                return self.builder.finish(self.gm, outputs, node, meta)
            value = self.env[node] = self.visit(node)
            if "rounds_to" in node.meta and isinstance(value, GraphValue):
                value.half = node.meta["rounds_to"]
                value.skippers.update(node.users)
        raise ContractError("C2.4", "the graph has no output")

    def visit(self, node: fx.Node) -> Any:
        if node.op in ("placeholder", "get_attr"):
            return self.input(node)
        if node.op != "call_function":
            raise ContractError("C2.1", f"{node.op} is not allowed", node)
        if "val" not in node.meta:
            raise ContractError("C2.3", 'no meta["val"]', node)
        if isinstance(node.target, OpOverload):
            return self.operator(node, node.target)
        if isinstance(node.target, Prim):
            return self.prim(node, node.target)
        if is_control(node.target):
            return lower_control(node, map_values(self.lookup, node.args), self.inner)
        if getattr(node.target, "__name__", "") == "getitem":
            value, index = node.args
            return self.getitem(map_values(self.lookup, value), self.lookup(index))
        if isinstance(node.meta["val"], (*SYMBOLIC, int, float, bool)):
            return node.meta["val"]
        what = f"target {node.target} is neither an operator overload nor size arithmetic"
        raise ContractError("C2.1", what, node)

    def lookup(self, leaf: Any) -> Any:
        return self.env[leaf] if isinstance(leaf, fx.Node) else leaf

    def input(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.op == "get_attr" and value is None:
            value = attrgetter(str(node.target))(self.gm)
        if isinstance(value, fx.GraphModule):  # a branch, which becomes a parameter
            return value
        if value is None and "val" not in node.meta:
            raise ContractError("C2.3", 'no meta["val"]', node)
        self.inputs[node] = self.builder.input(node, metas_of(value))
        return self.inputs[node] if isinstance(self.inputs[node].meta, TensorMeta) else value

    def getitem(self, value: Any, index: int) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(value[index]) if isinstance(value[index], list) else value[index]
        meta = value.meta[index]
        if meta is None or isinstance(meta, SYMBOLIC) or is_number(meta):
            return meta
        return self.builder.item(value, index)

    def prim(self, node: fx.Node, prim: Prim) -> GraphValue:
        args, params = map_values(self.lookup, node.args), map_values(self.lookup, node.kwargs)
        if prim is prims.convert and args[0].dtype is params["dtype"]:
            return self.builder.copy(args[0], node.meta["val"])
        if "control" in prim.tags:
            params = {
                name: self.part(x) if isinstance(x, fx.GraphModule) else x
                for name, x in params.items()
            }
        first = len(self.builder.values)
        value = prim(*args, **params)
        self.adopt(value, node.meta["val"], first)
        return value

    def part(self, graph: fx.GraphModule) -> fx.GraphModule:
        """A graph inside, as prims; one that several nodes call is decomposed once."""
        if graph not in self.parts:
            self.parts[graph] = self.inner(graph)
        return self.parts[graph]

    def operator(self, node: fx.Node, op: OpOverload) -> Any:
        if op._schema.is_mutable:
            raise ContractError("C2.2", f"{op} mutates its arguments", node)
        meta = metas_of(node.meta["val"])
        if is_size_query(op) and not isinstance(meta, TensorMeta):
            return node.meta["val"]
        args, kwargs = map_values(self.lookup, node.args), map_values(self.lookup, node.kwargs)
        is_exotic = _is_exotic((args, kwargs, meta), stored=_takes_stored(op, meta))
        rule = None if is_exotic else self.table.get(op) or seeded_rule(op.name(), self.table)
        if reads_memory(op):
            return self.on_memory(node, op, rule, meta)
        args = _with_tensor(op, args, meta)
        result = NotImplemented
        if rule is not None:
            result = self.expand(node, rule, *_by_position(op, args, kwargs), meta)
        if result is not NotImplemented:
            return result
        if self.strict and op not in self.known and not is_declared_extern(op):
            raise UnknownOpError(
                f"C3.1: {op} has no decomposition and is not a declared extern call{locate(node)}"
            )
        return self.extern(node, op, args, kwargs, meta)

    def on_memory(self, node: fx.Node, op: OpOverload, rule: Any, meta: Any) -> Any:
        """An operator of ``as_strided``'s kind: by its rule, else a call, on the tensor that owns
        the memory.
        """
        place = place_of(node, op)
        owner = self.laid_out(self.env[place.owner], place.owner)
        arguments = map_values(self.lookup, place.arguments)
        if rule is not None and place.start is not None:
            start = {"storage_offset": place.start}
            result = self.expand(node, rule, (owner,), arguments | start, meta)
            if result is not NotImplemented:
                return result
        if place.start is not None and not same_size(place.start, 0):
            if not same_layout(owner.meta, contiguous(owner.shape, owner.dtype, owner.device)):
                what = f"C2.3: {op} begins {place.start} elements into memory, which no call says"
                raise DecompositionError(what + locate(node))
            return self.on_rest(op, owner, place.start, arguments, meta)
        offset = {} if place.offset is None else {"storage_offset": self.lookup(place.offset)}
        return self.builder.call(op, (owner,), arguments | offset, meta)

    def on_rest(
        self, op: OpOverload, owner: GraphValue, start: Any, arguments: dict[str, Any], meta: Any
    ) -> GraphValue:
        """The call on the elements of a contiguous tensor from position ``start``; calls take any
        dtype.
        """
        aten, call, count = torch.ops.aten, self.builder.call, owner.numel()
        flat, part = (
            contiguous((size,), owner.dtype, owner.device) for size in (count, count - start)
        )
        vector = call(aten.view.default, (owner, [count]), {}, flat)
        rest = call(aten.slice.Tensor, (vector, 0, start, count), {}, part)
        if "src" not in arguments:
            return call(op, (rest,), arguments, meta)
        changed = (vector, call(op, (rest,), arguments, part), 0, start, count)
        written = call(aten.slice_scatter.default, changed, {}, flat)
        return call(aten.view.default, (written, list(owner.shape)), {}, meta)

    def expand(self, node: fx.Node, rule: Any, args: Args, kwargs: Params, meta: Any) -> Any:
        first = len(self.builder.values)
        try:
            result = rule(*args, **kwargs)
        except Exception as error:
            raise DecompositionError(
                f"C3.1: no prims for {node.target}: {type(error).__name__}: {error}{locate(node)}"
            ) from error
        if result is NotImplemented:
            return result
        if isinstance(result, (tuple, list)):
            if not isinstance(meta, tuple) or len(meta) != len(result):
                raise DecompositionError(
                    f"C2.3: {node.target} gives {len(result)} results, its meta is "
                    f"{meta}{locate(node)}"
                )
            loose = self.table.auxiliary(node.target)  # type: ignore[arg-type]
            parts = [
                _fitted(part, meta[i]) if i in loose else part for i, part in enumerate(result)
            ]
            self.check(node, parts, meta, first)
            return tuple(parts)
        self.check(node, result, meta, first)
        return result

    def check(self, node: fx.Node, value: Any, expected: Any, first: int) -> None:
        if isinstance(value, (tuple, list)) and isinstance(expected, tuple):
            if len(value) != len(expected):
                raise DecompositionError(
                    f"C2.3: {node.target} gives {len(value)} results of "
                    f"{len(expected)}{locate(node)}"
                )
            for part, wanted in zip(value, expected):
                self.check(node, part, wanted, first)
            return
        if not isinstance(value, GraphValue) or not isinstance(expected, TensorMeta):
            return
        if value.dtype is not expected.dtype or not may_be_same(value.shape, expected.shape):
            raise DecompositionError(
                f"C3.4: the decomposition of {node.target} gives {value.dtype} {tuple(value.shape)}"
                f", the node has {expected.dtype} {tuple(expected.shape)}{locate(node)}"
            )
        self.adopt(value, expected, first)

    def adopt(self, value: GraphValue, expected: TensorMeta, first: int) -> None:
        """A value made for this node takes over the node's sizes (as the capture wrote them) and
        strides.
        """
        if value.serial >= first:
            value.meta = expected

    def extern(self, node: fx.Node, op: OpOverload, args: Args, kwargs: Params, meta: Any) -> Any:
        args = tuple(self.laid_out(value, given) for value, given in zip(args, node.args))
        kwargs = {name: self.laid_out(value, node.kwargs[name]) for name, value in kwargs.items()}
        value = self.builder.call(op, args, kwargs, meta)
        binds_sizes = not size_symbols(meta) <= size_symbols((args, *kwargs.values()))
        if binds_sizes or torch.Tag.dynamic_output_shape in op.tags or is_effect(op):
            self.builder.pinned.append(value)
        return meta if isinstance(meta, SYMBOLIC) else value

    def laid_out(self, value: Any, given: Any) -> Any:
        """An operand of an extern call with the strides that the given graph has there."""
        if isinstance(value, (tuple, list)):
            return tuple(self.laid_out(v, g) for v, g in zip(value, given))
        if not isinstance(value, GraphValue) or not isinstance(given, fx.Node):
            return value
        wanted = metas_of(given.meta.get("val"))
        are_tensors = isinstance(wanted, TensorMeta) and isinstance(value.meta, TensorMeta)
        if not are_tensors or same_layout(value.meta, wanted):
            return value
        return self.builder.strided(value, wanted)

    def outputs(self, node: fx.Node) -> tuple[list[Any], tuple[Any, ...]]:
        given = node.args[0]
        if not isinstance(given, (tuple, list)):
            raise ContractError("C2.4", "the output is not a tuple", node)
        results: list[Any] = []
        owners: dict[GraphValue, fx.Node] = {}
        for item in given:
            value = self.lookup(item)
            if isinstance(item, fx.Node) and item in self.inputs:
                value = self.inputs[item]
            elif isinstance(value, GraphValue) and isinstance(value.meta, TensorMeta):
                assert isinstance(item, fx.Node)
                value = self.owned(value, item, owners)
            results.append(value)
        meta = tuple(metas_of(x.meta.get("val")) if isinstance(x, fx.Node) else x for x in given)
        previous = node.meta.get("val")
        if (
            isinstance(previous, tuple)
            and len(previous) == len(meta)
            and any(isinstance(m, TensorMeta) for m in previous)
        ):
            meta = previous
        return results, meta

    def owned(
        self, value: GraphValue, item: fx.Node, owners: dict[GraphValue, fx.Node]
    ) -> GraphValue:
        """A copy where simplification made an output share memory that it does not share in the
        given graph.
        """
        base, given_base = base_of(value), base_of(item)
        is_input = isinstance(base.target, fx.Node)
        owner = base.target if is_input else owners.setdefault(base, given_base)
        if owner is given_base:
            return value
        return self.builder.copy(value, metas_of(item.meta["val"]))


def _with_tensor(op: OpOverload, args: tuple[Any, ...], meta: Any) -> tuple[Any, ...]:
    """Arguments of an operator on tensors that was given numbers only: the first becomes a tensor
    of its dtype.
    """
    takes_tensor = bool(args) and isinstance(op._schema.arguments[0].type, torch.TensorType)
    if (
        not takes_tensor
        or not is_number(args[0])
        or any(isinstance(x, GraphValue) for x in args)
        or not isinstance(meta, TensorMeta)
    ):
        return args
    return (full((), args[0], number_dtype(args[0]), meta.device), *args[1:])


def _by_position(op: OpOverload, args: Args, kwargs: Params) -> tuple[Args, Params]:
    """Arguments as rules take them: by position unless the schema says keyword-only."""
    rest = [a for a in op._schema.arguments[len(args) :] if not a.kwarg_only]
    named = [i for i, argument in enumerate(rest) if argument.name in kwargs]
    if not named:
        return args, kwargs
    rest = rest[: named[-1] + 1]
    kwargs = dict(kwargs)
    return (*args, *[kwargs.pop(a.name, a.default_value) for a in rest]), kwargs


def _fitted(value: Any, expected: Any) -> Any:
    """An auxiliary result in the form that the graph expects."""
    if not isinstance(value, GraphValue) or not isinstance(expected, TensorMeta):
        return value
    if not may_be_same(value.shape, expected.shape):
        return full(expected.shape, 0, expected.dtype, expected.device)
    return round_to(value, expected.dtype)


def _is_required(value: Any) -> bool:
    return isinstance(value, fx.Node) and "required" in value.meta


def metas_of(value: Any) -> Any:
    """``meta["val"]`` in the form of clause C3.4."""
    if isinstance(value, TensorMeta):
        return value
    if isinstance(value, torch.Tensor):
        return TensorMeta.from_tensor(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(metas_of, value))
    return value


def size_symbols(value: Any) -> set[Any]:
    """The symbols of numbers and of the sizes of tensors."""
    if isinstance(value, GraphValue):
        value = value.meta
    if isinstance(value, TensorMeta):
        value = value.shape
    if isinstance(value, (tuple, list)):
        return set().union(*map(size_symbols, value))
    return set(value.node.expr.free_symbols) if isinstance(value, SYMBOLIC) else set()


def same_layout(a: TensorMeta, b: TensorMeta) -> bool:
    """Whether the strides agree for all dims that have more than one element, as far as the example
    tells.
    """
    if a is b or a.strides is b.strides:
        return True
    return len(a.strides) == len(b.strides) and all(
        same_size(x, y) or size_hint(size) in (0, 1) or (size_hint(x) == size_hint(y) is not None)
        for x, y, size in zip(a.strides, b.strides, a.shape)
    )


MOVES = frozenset({
    "t", "transpose", "permute", "view", "reshape", "_unsafe_view", "clone", "alias", "expand",
    "slice", "select", "unsqueeze", "squeeze",
})  # fmt: skip


def is_size_query(op: OpOverload) -> bool:
    """Operators that only read sizes or strides of a tensor."""
    aten = torch.ops.aten
    queries = (aten.sym_size, aten.sym_stride, aten.sym_numel, aten.sym_storage_offset)
    return op.overloadpacket in queries


def _takes_stored(op: OpOverload, meta: Any) -> bool:
    """Whether the prims of ``op`` take 8-bit floats: conversions, and on CUDA devices, whose loops
    load and store them, operators that only move elements.
    """
    if op is torch.ops.aten._to_copy.default:
        return True
    moves = op.namespace == "aten" and op.overloadpacket.__name__ in MOVES
    return moves and isinstance(meta, TensorMeta) and meta.device.type == "cuda"


def _is_exotic(tree: Any, stored: bool = False) -> bool:
    """Whether a complex number or a complex, quantized or 8-bit float tensor takes part; no prim
    computes on those. ``stored``: 8-bit floats do not count.
    """
    dtypes = PRIM_DTYPES | STORED_DTYPES if stored else PRIM_DTYPES
    for leaf in leaves(tree):
        meta = leaf.meta if isinstance(leaf, GraphValue) else leaf
        if isinstance(leaf, complex) or (isinstance(meta, TensorMeta) and meta.dtype not in dtypes):
            return True
    return False
