"""``check_prim_backend``: a backend against the evaluator, prim by prim and on random prim
graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from primops import prims
from primops.builder import GraphBuilder, GraphValue
from primops.evaluate import evaluate
from primops.meta import Size, TensorMeta
from primops.module import LazyGraphModule
from primops.operand import broadcast_to, spread
from primops.prim import ExternPrim, reading_with
from primops.promotion import is_integral
from primops.testing.oracle import assert_matches
from primops.testing.strategies import ALL, FLOATS, GENERATED, PrimCall, prim_calls, shapes, tensors
from primops.verify import check_prims

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]


@dataclass(frozen=True)
class PrimGraph:
    """A prim graph and inputs for it."""

    graph: fx.GraphModule
    inputs: tuple[Any, ...]


def graph_of(call: PrimCall) -> PrimGraph:
    """One call as a graph; its tensors are the inputs."""
    graph = fx.Graph()
    inputs: list[torch.Tensor] = []

    def read(operand: Any) -> Any:
        if not isinstance(operand, torch.Tensor):
            return operand
        inputs.append(operand)
        node = graph.placeholder(f"in{len(inputs)}")
        node.meta["val"] = TensorMeta.from_tensor(operand)
        return node

    operands = tuple(map(read, call.operands))
    result = call.run()
    target = call.prim.overload if isinstance(call.prim, ExternPrim) else call.prim
    node = graph.call_function(target, operands, dict(call.params))
    several = isinstance(result, (tuple, list))
    metas = tuple(TensorMeta.from_tensor(x) for x in (result if several else (result,)))
    node.meta["val"] = metas if several else metas[0]
    outputs = (node,)
    if several:
        outputs = tuple(_item(graph, node, i, meta) for i, meta in enumerate(metas))
    graph.output(outputs).meta["val"] = metas
    return PrimGraph(LazyGraphModule(torch.nn.Module(), graph), tuple(inputs))


def _item(graph: fx.Graph, node: fx.Node, index: int, meta: TensorMeta) -> fx.Node:
    item = graph.call_function(operator.getitem, (node, index))
    item.meta["val"] = meta
    return item


HEALTH: Any = tuple(HealthCheck)
_UNARY = ("neg", "abs", "exp", "tanh", "sin", "floor", "sqrt")
_BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")


@st.composite
def prim_graphs(draw: Any, steps: int = 6, size: Callable[[int], Size] | None = None) -> PrimGraph:
    """Random graphs: elementwise prims, broadcasts, reductions, movement and conversion over one to
    three inputs.

    Inputs have sizes 0 and 1 and permuted strides; dtypes are all that a prim takes. ``size`` makes
    the first size of the first input symbolic (a placeholder of its own), for backends that take
    such graphs.
    """
    builder = GraphBuilder(fast=False)
    holder = fx.Graph()
    given_inputs: list[Any] = []
    values: list[GraphValue] = []
    first = draw(shapes(3)) or (2,)
    symbol = size(first[0]) if size is not None and first[0] > 1 else None
    if symbol is not None:
        _place(builder, holder, "size", symbol)
        given_inputs.append(first[0])
    for i in range(draw(st.integers(1, 3))):
        shape = (
            first if i == 0 or draw(st.booleans()) else first[draw(st.integers(0, len(first))) :]
        )
        tensor = draw(tensors(draw(st.sampled_from(ALL if i else FLOATS)), shape))
        meta = TensorMeta.from_tensor(tensor)
        if symbol is not None and len(shape) == len(first):
            meta = TensorMeta(
                (symbol, *meta.shape[1:]), _strides(meta, first, symbol), meta.dtype, meta.device
            )
        given_inputs.append(tensor)
        values.append(_place(builder, holder, f"in{i}", meta))
    with reading_with(builder):
        for _ in range(draw(st.integers(1, steps))):
            values.append(draw(_step(values)))
    outputs = values[-draw(st.integers(1, 2)) :]
    output = holder.output(())
    graph = builder.finish(torch.nn.Module(), outputs, output, tuple(v.meta for v in outputs))
    check_prims(graph)
    return PrimGraph(graph, tuple(given_inputs))


def _strides(meta: TensorMeta, shape: tuple[int, ...], symbol: Size) -> tuple[Size, ...]:
    """Strides with the first size's factor made symbolic."""
    return tuple(
        s // shape[0] * symbol if d and s > meta.strides[0] and shape[0] else s  # type: ignore[operator]
        for d, s in enumerate(meta.strides)
    )


def _place(builder: GraphBuilder, graph: fx.Graph, name: str, meta: Any) -> GraphValue:
    node = graph.placeholder(name)
    node.meta["val"] = meta
    return builder.input(node, meta)


@st.composite
def _step(draw: Any, values: list[GraphValue]) -> GraphValue:
    a = draw(st.sampled_from(values))
    kind = draw(
        st.sampled_from(
            ["unary", "binary", "reduce", "permute", "flip", "pad", "compare", "convert", "softmax"]
        )
    )
    target = draw(st.sampled_from(FLOATS))
    wide = a if a.dtype in FLOATS else prims.convert(a, dtype=target)
    if kind == "binary":
        b = draw(st.sampled_from([v for v in values if v.ndim <= a.ndim]))
        fits = all(x == 1 or x is y or x == y for x, y in zip(b.shape[::-1], a.shape[::-1]))
        b = (
            broadcast_to(
                b if b.dtype is wide.dtype else prims.convert(b, dtype=wide.dtype), a.shape
            )
            if fits
            else 2
        )
        return getattr(prims, draw(st.sampled_from(_BINARY)))(wide, b)
    if kind == "reduce" and a.ndim:
        dims = (draw(st.integers(0, a.ndim - 1)),)
        return spread(prims.sum(wide, dims=dims), wide.shape, dims)
    if kind == "permute":
        return prims.permute(a, dims=tuple(draw(st.permutations(range(a.ndim)))))
    if kind == "flip" and a.ndim:
        return prims.flip(a, dims=(draw(st.integers(0, a.ndim - 1)),))
    if kind == "pad" and a.ndim:
        return prims.pad(a, low=(1,) * a.ndim, high=(0,) * a.ndim, value=0)
    if kind == "compare":
        return prims.where(prims.gt(wide, 0), wide, 1)
    if kind == "convert":
        return prims.convert(a, dtype=draw(st.sampled_from([t for t in ALL if not is_integral(t)])))
    return getattr(prims, draw(st.sampled_from(_UNARY)))(wide)


@dataclass
class BackendReport:
    """Prims that agree with the evaluator, and for the others the smallest failing call with its
    error.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [f"{len(self.passed)} pass, {len(self.failed)} fail"]
        return "\n".join([*rows, *(f"  {name}: {text}" for name, text in self.failed.items())])


def check_prim_backend(
    compile_fn: Compile,
    *,
    names: Iterable[str] = GENERATED,
    graphs: bool = True,
    examples: int = 10,
) -> BackendReport:
    """Runs ``compile_fn(graph, inputs)(*inputs)`` on generated calls of each prim, and on whole
    graphs, against ``evaluate``.

    Equal by the rule of ``assert_matches`` with the float64 evaluation as the exact result. Never
    raises for a wrong backend: the report names each prim that failed, with the smallest call found
    (``"graphs"`` for whole graphs).
    """
    report = BackendReport()
    subjects: dict[str, st.SearchStrategy[PrimGraph]] = {
        name: prim_calls(name).map(graph_of) for name in names
    }
    if graphs:
        subjects["graphs"] = prim_graphs()
    for name, strategy in subjects.items():
        failure = _first_failure(compile_fn, strategy, examples)
        if failure is None:
            report.passed.append(name)
        else:
            report.failed[name] = failure
    return report


def _first_failure(
    compile_fn: Compile, strategy: st.SearchStrategy[PrimGraph], examples: int
) -> str | None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=HEALTH,
    )
    @given(strategy)
    def check(made: PrimGraph) -> None:
        wanted = evaluate(made.graph, made.inputs)
        exact = evaluate(made.graph, made.inputs, promote_to=torch.float64)
        results = compile_fn(made.graph, list(made.inputs))(*made.inputs)
        for got, value, judge in zip(results, wanted, exact, strict=True):
            if "random_seed" not in str(made.graph.graph):
                assert_matches(got, value, judge if judge.shape == value.shape else None)

    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]
    return None
