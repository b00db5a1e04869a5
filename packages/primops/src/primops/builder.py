"""Prim graphs under construction: values, common subexpressions, and the FX graph that they
become.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from primops import prims
from primops.errors import PrimError
from primops.meta import TensorMeta
from primops.module import LazyGraphModule
from primops.prim import ExternPrim, Prim, Traced
from primops.shapes import size_key
from primops.simplify import simplify

KEPT_META = ("stack_trace", "forward_node", "source", "static", "donated", "written", "required")
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Args = tuple[Any, ...]
Params = dict[str, Any]


@dataclass(slots=True, eq=False, repr=False)
class GraphValue(Traced):
    """One value of the graph: a call of ``target``, or an input when ``node`` is set from the
    start.

    ``meta`` is what C3.4 says; ``origin`` is the node of the given graph that the value comes from.
    ``half`` is the dtype that eager rounds the value to; ``skippers`` are the nodes that read it
    unrounded.
    """

    interpreter: GraphBuilder
    target: Any
    args: Args
    params: Params
    meta: Any
    origin: fx.Node | None
    node: fx.Node | None = None
    unrounded: GraphValue | None = None
    half: torch.dtype | None = None
    skippers: set[fx.Node | None] = field(default_factory=set)
    serial: int = field(init=False)

    # functions, not attrgetters: CPython 3.14 looks for their code when it adds slots
    shape: ClassVar[Any] = property(lambda self: self.meta.shape)
    dtype: ClassVar[Any] = property(lambda self: self.meta.dtype)
    device: ClassVar[Any] = property(lambda self: self.meta.device)
    ndim: ClassVar[Any] = property(lambda self: len(self.meta.shape))

    def __post_init__(self) -> None:
        self.serial = len(self.interpreter.values)

    def numel(self) -> int | torch.SymInt:
        """Number of elements."""
        return self.meta.numel()

    def stride(self) -> tuple[int | torch.SymInt, ...]:
        """Strides, as the graph has them."""
        return self.meta.strides

    def widened(self) -> GraphValue | None:
        """The unrounded float32 value, also through shape prims."""
        moves = isinstance(self.target, Prim) and "movement" in self.target.tags
        if self.unrounded is None and moves and len(self.args) == 1:
            source = self.args[0].widened() if self.target is not prims.pad else None
            if source is not None:
                self.unrounded = self.target(source, **self.params)
        if self.unrounded is not None:
            self.unrounded.skippers.add(self.interpreter.origin)
        return self.unrounded

    def rounded(self, dtype: torch.dtype) -> GraphValue:
        """See ``Traced.rounded``."""
        return self.interpreter.round_to(self, dtype)

    def __repr__(self) -> str:
        return f"<{getattr(self.target, '__name__', self.target)}: {self.meta}>"


def is_effect(op: OpOverload) -> bool:
    """Whether each call counts: it draws numbers in eager's sequence, all processes run it or none,
    or it has no result.
    """
    return (
        torch.Tag.nondeterministic_seeded in op.tags
        or op.namespace == "_c10d_functional"
        or not op._schema.returns
    )


class GraphBuilder:
    """Interpreter that records prim calls. Equal calls give one value; ``simplify`` sees each call
    first.

    ``fast``: values rounded to a half dtype remember what they were rounded from
    (``numerics="fast"``).
    """

    def __init__(self, *, fast: bool) -> None:
        """An empty graph."""
        self.fast = fast
        self.origin: fx.Node | None = None
        self.values: list[GraphValue] = []
        self.pinned: list[GraphValue] = []
        self._known: dict[Any, GraphValue] = {}
        self._seeds: dict[torch.device, tuple[GraphValue, int | torch.SymInt]] = {}

    def apply(self, prim: Prim, operands: Args, params: Params) -> GraphValue:
        """Records ``prim(*operands, **params)`` or finds a value that equals it. Raises PrimError
        for a bad call.
        """
        meta = prim.infer(tuple([_operand_meta(prim, operand) for operand in operands]), params)
        if isinstance(prim, ExternPrim):
            return self.call(prim.overload, operands, params, meta)
        params = {name: _frozen(params[name]) for name in prim.parameters}
        simpler: Any = simplify(prim, operands, params, meta)
        if simpler is not None:
            return simpler
        if prim is prims.call:  # there may be random numbers inside: each call counts
            self.pinned.append(self._append(prim, operands, params, meta))
            return self.pinned[-1]
        if "impure" in prim.tags:
            return self._append(prim, operands, params, meta)
        return self._shared((prim, key_of(operands), key_of(params)), prim, operands, params, meta)

    def round_to(self, value: GraphValue, dtype: torch.dtype) -> GraphValue:
        """``convert`` that later uses in float32 may skip, with ``fast``."""
        meta = prims.convert.infer((value.meta,), {"dtype": dtype})
        key = (prims.convert, value, dtype, "rounded")
        rounded = self._shared(key, prims.convert, (value,), {"dtype": dtype}, meta)
        if self.fast:
            rounded.unrounded, value.half = value, dtype
        return rounded

    def copy(self, value: GraphValue, meta: TensorMeta) -> GraphValue:
        """An identity ``convert``, never simplified: a new tensor with the strides of ``meta``."""
        return self._append(prims.convert, (value,), {"dtype": value.dtype}, meta)

    def strided(self, value: GraphValue, meta: TensorMeta) -> GraphValue:
        """``value`` with the strides of ``meta`` for calls, which only read it: one copy serves
        them all.
        """
        key = (prims.convert, value, key_of(meta.strides), "strided")
        return self._shared(key, prims.convert, (value,), {"dtype": value.dtype}, meta)

    def call(self, target: OpOverload, args: Args, kwargs: Params, meta: Any) -> GraphValue:
        """Records an extern call. Calls of deterministic operators are shared like prims, unless
        each has a size of its own.
        """
        if is_effect(target):
            return self._append(target, args, kwargs, meta)
        key = (target, key_of(args), key_of(kwargs), _sizes_key(meta))
        return self._shared(key, target, args, kwargs, meta)

    def item(self, value: GraphValue, index: int) -> GraphValue:
        """Result ``index`` of a call with several results."""
        key = (operator.getitem, value, index)
        return self._shared(key, operator.getitem, (value, index), {}, value.meta[index])

    def uniform(
        self, shape: tuple[int | torch.SymInt, ...], device: torch.device, prim: Prim
    ) -> GraphValue:
        """Random float32 in [0, 1): one seed per device and graph, a fresh range of counters per
        call of ``prim``.
        """
        seed, offset = self._seeds.get(device) or (prims.random_seed(device=device), 0)
        value = prim(seed, shape=shape, offset=offset)
        self._seeds[device] = (seed, offset + value.numel())
        return value

    def _shared(self, key: Any, target: Any, args: Args, params: Params, meta: Any) -> GraphValue:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._append(target, args, params, meta)
        return found

    def _append(self, target: Any, args: Args, params: Params, meta: Any) -> GraphValue:
        value = GraphValue(self, target, args, params, meta, self.origin)
        self.values.append(value)
        return value

    def input(self, node: fx.Node, meta: Any) -> GraphValue:
        """A placeholder or constant; copied to the new graph whether used or not."""
        return self._append(node, (), {}, meta)

    def finish(
        self, root: torch.nn.Module, outputs: list[Any], output_node: fx.Node, output_meta: Args
    ) -> fx.GraphModule:
        """The graph of all values that ``outputs`` or pinned values need, in the order they were
        made.
        """
        live = _reachable([*(x for x in outputs if isinstance(x, GraphValue)), *self.pinned])
        graph = fx.Graph()
        for value in self.values:
            if isinstance(value.target, fx.Node):
                value.node = graph.create_node(
                    value.target.op, value.target.target, name=value.target.name
                )
                value.node.meta = {**value.target.meta, "val": value.meta}
            elif value in live:
                value.node = _emit(graph, value)
        _note_rounding(live, outputs)
        result = graph.output(tuple(x.node if isinstance(x, GraphValue) else x for x in outputs))
        result.meta.update(_annotations(output_node), val=output_meta)
        return LazyGraphModule(root, graph)


def _note_rounding(live: set[GraphValue], outputs: list[Any]) -> None:
    """Sets ``meta["rounds_to"]`` on nodes that none but operators read for which eager rounds the
    value (C3.8).
    """
    if not any(value.half is not None for value in live):
        return
    exact = {x for x in outputs if isinstance(x, GraphValue)}
    for user in live:
        for value in values_in((*user.args, *user.params.values())):
            is_skip = user.origin in value.skippers and user.origin is not value.origin
            if value.half is not None and not is_skip and user.unrounded is not value:
                exact.add(value)
    for value in live - exact:
        if value.half is not None and value.node is not None:
            value.node.meta["rounds_to"] = value.half


def _operand_meta(prim: Prim, operand: Any) -> Any:
    if isinstance(operand, GraphValue):
        return operand.meta
    if isinstance(operand, torch.Tensor):
        raise PrimError(f"{prim.name}: a real tensor in a graph; make it a constant of the module")
    return operand


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, torch.Size)) else value


def key_of(value: Any) -> Any:
    """A hashable stand-in for arguments; equal keys mean equal arguments."""
    kind = type(value)
    if kind is GraphValue:
        return value
    if kind is tuple or kind is list or kind is torch.Size:
        return tuple([x if type(x) is GraphValue else key_of(x) for x in value])
    if kind is dict:
        return tuple([(name, key_of(x)) for name, x in value.items()])
    if kind is float:
        return (float, value.hex())
    return (kind, size_key(value))


def _sizes_key(meta: Any) -> Any:
    if isinstance(meta, (tuple, list)):
        return tuple(map(_sizes_key, meta))
    return key_of(getattr(meta, "shape", meta))


def _annotations(node: fx.Node) -> dict[str, Any]:
    """The entries of a given node's ``meta`` that its prims take over."""
    return {key: node.meta[key] for key in KEPT_META if key in node.meta}


def _reachable(roots: Iterable[GraphValue]) -> set[GraphValue]:
    seen: set[GraphValue] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            stack.extend(values_in((*value.args, *value.params.values())))
    return seen


_TREES = (tuple, list, dict)


def leaves(tree: Any) -> Iterator[Any]:
    """All that nested tuples, lists and dicts hold."""
    if not isinstance(tree, _TREES):
        yield tree
        return
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, _TREES):
            yield from leaves(item)
        else:
            yield item


def values_in(trees: Iterable[Any]) -> Iterator[GraphValue]:
    """All graph values in nested arguments."""
    return (leaf for tree in trees for leaf in leaves(tree) if isinstance(leaf, GraphValue))


def map_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each leaf; tuples, lists and dicts are kept."""
    if isinstance(tree, (tuple, list)):
        mapped = [
            map_values(function, item) if isinstance(item, _TREES) else function(item)
            for item in tree
        ]
        return tuple(mapped) if isinstance(tree, tuple) else mapped
    if isinstance(tree, dict):
        return {name: map_values(function, item) for name, item in tree.items()}
    return function(tree)


def _node_of(leaf: Any) -> Any:
    return leaf.node if isinstance(leaf, GraphValue) else leaf


def _emit(graph: fx.Graph, value: GraphValue) -> fx.Node:
    if isinstance(value.target, Prim):
        name = value.target.name
    else:
        name = value.origin.name if value.origin is not None else None
    node = graph.create_node("call_function", value.target, name=name)
    # Set afterwards: create_node searches its arguments for symbolic sizes to warn of, which clause
    # C3.5 wants.
    node._update_args_kwargs(  # type: ignore[attr-defined]
        map_values(_node_of, value.args), map_values(_node_of, value.params)
    )
    meta = node.meta
    meta["val"] = value.meta
    if value.origin is not None:
        meta["origin"] = value.origin.meta.get("origin", value.origin.name)
        meta.update(_annotations(value.origin))
    return node
