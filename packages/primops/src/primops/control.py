"""Control flow in ``decompose``: torch's higher-order ``cond``, ``while_loop`` and ``scan`` as
prims over prim graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator
from torch.fx.node import map_arg

from primops import prims
from primops.errors import ContractError
from primops.operand import Tensor

Graph = fx.GraphModule
Decompose = Callable[[Graph], Graph]
Values = Sequence[Any]


def is_control(target: Any) -> bool:
    """Whether a call target is an operator that ``lower_control`` takes."""
    return isinstance(target, HigherOrderOperator) and target.name() in _LOWERINGS


def lower_control(node: fx.Node, args: tuple[Any, ...], decompose: Decompose) -> tuple[Any, ...]:
    """The results of a higher-order operator, whose graphs ``decompose`` rewrites. Raises
    ContractError for anything else.
    """
    assert isinstance(node.target, HigherOrderOperator)
    if not all(isinstance(graph, fx.GraphModule) for graph in args[_GRAPHS[node.target.name()]]):
        raise ContractError("C2.1", f"the branches of {node.target} are no graph modules", node)
    return _LOWERINGS[node.target.name()](decompose, *args)


def _items(results: Any, count: int) -> tuple[Tensor, ...]:
    return tuple(results.interpreter.item(results, i) for i in range(count))


def _results_of(gm: Graph) -> int:
    return len(gm.graph.output_node().args[0])  # type: ignore[arg-type]


def _cond(decompose: Decompose, pred: Tensor, true: Graph, false: Graph, operands: Values) -> Any:
    pred = prims.reshape(pred, shape=()) if pred.ndim else pred
    found = prims.cond(pred, *operands, true_graph=decompose(true), false_graph=decompose(false))
    return _items(found, _results_of(true))


def _while_loop(
    decompose: Decompose, cond: Graph, body: Graph, carried: Values, constant: Values = ()
) -> Any:
    """What the loop only reads is carried along."""
    count = len(carried)
    body = _reordered(body, list(range(count + len(constant))), count, len(constant))
    found = prims.while_loop(
        *carried, *constant, cond_graph=decompose(cond), body_graph=decompose(body)
    )
    return _items(found, count)


def _scan(
    decompose: Decompose, step: Graph, init: Values, xs: Values, constant: Values = ()
) -> Any:
    """What the steps only read is carried along."""
    count, sliced = len(init), len(xs)
    total = count + sliced + len(constant)
    order = [*range(count), *range(count + sliced, total), *range(count, count + sliced)]
    results = _results_of(step)
    graph = decompose(_reordered(step, order, count, len(constant)))
    carried, length = count + len(constant), xs[0].shape[0]
    found = prims.scan(*init, *constant, *xs, body_graph=graph, carried=carried, length=length)
    items = _items(found, results + len(constant))
    return (*items[:count], *items[carried:])


def _reordered(gm: Graph, order: list[int], carried: int, constant: int) -> Graph:
    """``gm`` with its placeholders in another order, carried and constant ones first; the constant
    ones are results, too.
    """
    graph, copies = fx.Graph(), {}
    given = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position in order:
        copies[given[position]] = graph.node_copy(given[position])
    constants = list(copies.values())[carried : carried + constant]
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results: Any = map_arg(gm.graph.output_node().args[0], copies.__getitem__)
    graph.output((*results[:carried], *constants, *results[carried:]))
    return fx.GraphModule(gm, graph)


_LOWERINGS = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}
_GRAPHS = {"cond": slice(1, 3), "while_loop": slice(0, 2), "scan": slice(0, 1)}
