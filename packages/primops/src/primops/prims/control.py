"""Control flow: prims whose parameters are prim graphs. Results are tuples, one entry per output of
the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from primops.errors import PrimError
from primops.meta import TensorMeta, contiguous
from primops.prim import group

Run = Callable[..., tuple[torch.Tensor, ...]]


def output_metas(graph: fx.GraphModule) -> tuple[TensorMeta, ...]:
    """Metadata of a prim graph's outputs, contiguous."""
    found = graph.graph.output_node().meta.get("val")
    if not isinstance(found, tuple):
        raise PrimError('a branch is no prim graph: its output has no meta["val"]')
    return tuple(contiguous(meta.shape, meta.dtype, meta.device) for meta in found)


def _agree(graph: fx.GraphModule, operands: tuple[Any, ...]) -> None:
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    if _forms(inputs) != _forms(operands):
        raise PrimError(f"a graph of inputs {_forms(inputs)} is given {_forms(operands)}")


def _forms(metas: Iterable[Any]) -> list[Any]:
    return [(m.dtype, len(m.shape)) if isinstance(m, TensorMeta) else type(m) for m in metas]


def _scalar_bool(meta: Any) -> None:
    if not isinstance(meta, TensorMeta) or meta.dtype is not torch.bool or meta.ndim:
        raise PrimError(f"the predicate is {meta}, needs a bool scalar")


def _cond_rule(
    pred: TensorMeta, *operands: Any, true_graph: fx.GraphModule, false_graph: fx.GraphModule
) -> Any:
    _scalar_bool(pred)
    for graph in (true_graph, false_graph):
        _agree(graph, operands)
    metas, others = output_metas(true_graph), output_metas(false_graph)
    if _forms(metas) != _forms(others):
        raise PrimError(f"the branches give {metas} and {others}")
    return metas


def _while_rule(*carried: Any, cond_graph: fx.GraphModule, body_graph: fx.GraphModule) -> Any:
    for graph in (cond_graph, body_graph):
        _agree(graph, carried)
    _scalar_bool(output_metas(cond_graph)[0])
    metas = output_metas(body_graph)
    if _forms(metas) != _forms(carried):
        raise PrimError(f"the body takes {carried} and gives {metas}")
    return metas


def _scan_rule(*operands: TensorMeta, body_graph: fx.GraphModule, carried: int, length: int) -> Any:
    slices = [TensorMeta(x.shape[1:], x.strides[1:], x.dtype, x.device) for x in operands[carried:]]
    _agree(body_graph, (*operands[:carried], *slices))
    metas = output_metas(body_graph)
    stacked = [contiguous((length, *m.shape), m.dtype, m.device) for m in metas[carried:]]
    return (*metas[:carried], *stacked)


def _call_rule(*operands: Any, graph: fx.GraphModule) -> Any:
    _agree(graph, operands)
    return output_metas(graph)


def _call(*operands: Any, graph: fx.GraphModule) -> Any:
    return _run(graph, operands)


def _run(graph: fx.GraphModule, operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.contiguous() for x in graph(*operands))


def _cond(
    pred: torch.Tensor, *operands: Any, true_graph: fx.GraphModule, false_graph: fx.GraphModule
) -> Any:
    return _run(true_graph if bool(pred) else false_graph, operands)


def _while(*carried: Any, cond_graph: fx.GraphModule, body_graph: fx.GraphModule) -> Any:
    while bool(_run(cond_graph, carried)[0]):
        carried = _run(body_graph, carried)
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in carried)


def _scan(*operands: torch.Tensor, body_graph: fx.GraphModule, carried: int, length: int) -> Any:
    state, found = operands[:carried], []
    for i in range(length):
        results = _run(body_graph, (*state, *(x[i] for x in operands[carried:])))
        state = results[:carried]
        found.append(results[carried:])
    return (*state, *(torch.stack(parts) for parts in zip(*found)))


_control = group(
    "control flow", "control", dtype_rule="those of the graph's outputs",
    numerics="that of the graphs",
)  # fmt: skip
cond = _control(
    "cond(pred, *operands, true_graph, false_graph)", _cond_rule, _cond,
    "true_graph(*operands) if pred else false_graph(*operands)",
)  # fmt: skip
while_loop = _control(
    "while_loop(*carried, cond_graph, body_graph)", _while_rule, _while,
    "carried = body_graph(*carried) as long as cond_graph(*carried)[0]",
)  # fmt: skip
scan = _control(
    "scan(*operands, body_graph, carried, length)", _scan_rule, _scan,
    "state = the first `carried` operands; state, y[i] = body_graph(*state, *(x[i] for the "
    "others)) for i in [0, length)",
)  # fmt: skip
call = _control(
    "call(*operands, graph)", _call_rule, _call,
    "graph(*operands): equal parts of a graph are calls of one graph",
)  # fmt: skip
