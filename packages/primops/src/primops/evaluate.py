"""The meaning of a prim graph: node by node on real tensors, through the prims' references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from primops.builder import SYMBOLIC, map_values
from primops.errors import PrimopsError, locate
from primops.meta import TensorMeta
from primops.prim import Prim

Symbols = dict[Any, int]
OnNode = Callable[[fx.Node, Any], None]


def evaluate(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    promote_to: torch.dtype | None = None,
    on_node: OnNode | None = None,
) -> tuple[Any, ...]:
    """Runs ``gm`` on real inputs, in placeholder order, and returns its outputs.

    Extern calls receive tensors with the strides that the graph states, and so does the caller
    (C3.6).

    Args:
        gm: a prim graph; sizes in its parameters may be symbolic, bound by the inputs.
        inputs: tensors, and numbers for size placeholders.
        promote_to: compute floating point values in this dtype throughout (``torch.float64``: the
            numerics oracle).
        on_node: called with every node and its value, in order; also inside the graphs of control
            flow.

    Raises PrimopsError that names the node when a call fails or an input is missing.
    """
    return _evaluate(_Run(gm, promote_to, on_node), inputs)


def _evaluate(run: _Run, inputs: Sequence[Any]) -> tuple[Any, ...]:
    gm, on_node = run.gm, run.on_node
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise PrimopsError(f"the graph has {len(placeholders)} inputs, got {len(inputs)}")
    for node, value in zip(placeholders, inputs):
        bind(run.symbols, node.meta.get("val"), value)
        run.env[node] = run.promoted(value)
    for node in gm.graph.nodes:
        if node.op == "output":
            return tuple(
                run.laid_out(run.lookup(x), meta) for x, meta in zip(node.args[0], node.meta["val"])
            )
        if node.op != "placeholder":
            run.env[node] = run.call(node)
        if on_node is not None:
            on_node(node, run.env[node])
    raise PrimopsError("the graph has no output")


@dataclass
class _Run:
    gm: fx.GraphModule
    promote_to: torch.dtype | None
    on_node: OnNode | None
    env: dict[fx.Node, Any] = field(default_factory=dict)
    symbols: Symbols = field(default_factory=dict)

    def promoted(self, value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self.promote_to) if is_float and self.promote_to is not None else value

    def lookup(self, leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return self.env[leaf]
        if isinstance(leaf, SYMBOLIC):
            return substitute(leaf, self.symbols)
        if isinstance(leaf, fx.GraphModule):
            # the sizes of the graph around it are known inside
            return lambda *inputs: _evaluate(
                _Run(leaf, self.promote_to, self.on_node, symbols=dict(self.symbols)), inputs
            )
        if self.promote_to is not None and isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return self.promote_to
        return leaf

    def laid_out(self, value: Any, meta: Any) -> Any:
        """``value`` with the strides of ``meta``, unless those make elements overlap."""
        if not isinstance(value, torch.Tensor) or not isinstance(meta, TensorMeta):
            return value
        strides = tuple(map_values(self.lookup, meta.strides))
        if value.stride() == strides or any(
            step == 0 and size > 1 for step, size in zip(strides, value.shape)
        ):
            return value
        copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return copy.copy_(value)

    def operand(self, leaf: Any) -> Any:
        value = self.lookup(leaf)
        return self.laid_out(value, leaf.meta.get("val")) if isinstance(leaf, fx.Node) else value

    def call(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self.promoted(attrgetter(str(node.target))(self.gm))
        assert callable(node.target)
        read = self.operand if isinstance(node.target, OpOverload) else self.lookup
        function = node.target
        if isinstance(function, Prim) and "control" in function.tags:
            function = function.reference  # its meta rule knows the graphs' dtypes before promotion
        try:
            value = function(*map_values(read, node.args), **map_values(read, dict(node.kwargs)))
        except IndexError:
            raise
        except Exception as error:
            raise PrimopsError(f"{type(error).__name__}: {error}{locate(node)}") from error
        value = map_values(self.promoted, value)
        bind(self.symbols, node.meta.get("val"), value)
        return value


def bind(symbols: Symbols, meta: Any, value: Any) -> None:
    """Records the values of bare symbols that ``meta`` shows and ``value`` fixes."""
    if isinstance(meta, torch.SymInt) and isinstance(value, int):
        if getattr(meta.node.expr, "is_Symbol", False):
            symbols.setdefault(meta.node.expr, value)
    elif isinstance(meta, TensorMeta) and isinstance(value, torch.Tensor):
        for size, actual in zip(meta.shape, value.shape):
            bind(symbols, size, actual)
    elif isinstance(meta, (tuple, list)) and isinstance(value, (tuple, list)):
        for part, actual in zip(meta, value):
            bind(symbols, part, actual)


def substitute(size: Any, symbols: Mapping[Any, int]) -> Any:
    """The number that a symbolic size, float or bool stands for. Raises PrimopsError for an unbound
    symbol.
    """
    expression = size.node.expr
    if expression in symbols:
        return symbols[expression]
    found = expression.subs(symbols)
    if getattr(found, "free_symbols", None):
        unbound = sorted(map(str, found.free_symbols))
        raise PrimopsError(f"{expression} has unbound symbols {unbound}")
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(size)](found)
