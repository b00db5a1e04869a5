"""Control flow and collectives: as prims, from torch's operators, evaluated and decomposed
inside.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from primops import (
    ContractError,
    TensorMeta,
    check_prims,
    decompose,
    decomposition_report,
    evaluate,
    prims,
)
from primops.testing import trace
from primops.testing.strategies import prim_calls
from primops.text import format_graph
from torch import fx

X = torch.tensor([[1.0, 2.0], [-3.0, 4.0], [5.0, -6.0]])
HIGHER = torch.ops.higher_order


def graph_with(target, arguments, inputs, results):
    """A C2 graph of one higher-order call. ``arguments``: graphs, operand positions, or lists of
    these.
    """
    graph, root = fx.Graph(), torch.nn.Module()
    nodes = [graph.placeholder(f"in{i}") for i in range(len(inputs))]
    for node, value in zip(nodes, inputs):
        node.meta["val"] = TensorMeta.from_tensor(value)

    def read(argument):
        if isinstance(argument, fx.GraphModule):
            name = f"graph{len(root._modules)}"
            root.add_module(name, argument)
            return graph.get_attr(name)
        return tuple(map(read, argument)) if isinstance(argument, list) else nodes[argument]

    call = graph.call_function(target, tuple(map(read, arguments)))
    call.meta["val"] = tuple(map(TensorMeta.from_tensor, results))
    items = [graph.call_function(operator.getitem, (call, i)) for i in range(len(results))]
    for item, result in zip(items, results):
        item.meta["val"] = TensorMeta.from_tensor(result)
    graph.output(tuple(items))
    return fx.GraphModule(root, graph)


def check(gm, inputs, expected):
    prim_graph = decompose(gm, strict=True)
    check_prims(prim_graph)
    assert not decomposition_report(prim_graph).externs
    for numerics in ("fast", "eager"):
        for got, wanted in zip(
            evaluate(decompose(gm, numerics=numerics), inputs), expected, strict=True
        ):
            torch.testing.assert_close(got, wanted)
    (wide, *_) = evaluate(prim_graph, inputs, promote_to=torch.float64)
    assert wide.dtype is torch.float64
    assert format_graph(decompose(prim_graph)) == format_graph(prim_graph)
    return prim_graph


@pytest.mark.parametrize("truth", [True, False])
def test_cond(truth):
    true, false = (
        trace(lambda a, b: (torch.nn.functional.gelu(a), a + b), X, X),
        trace(lambda a, b: (a.softmax(-1), a - b), X, X),
    )
    pred = torch.tensor(truth)
    wanted = (torch.nn.functional.gelu(X), X + X) if truth else (X.softmax(-1), X - X)
    gm = check(
        graph_with(HIGHER.cond, (0, true, false, [1, 2]), (pred, X, X), wanted),
        (pred, X, X),
        wanted,
    )
    seen = []
    evaluate(gm, (pred, X, X), on_node=lambda node, value: seen.append(node.name))
    assert ("erf" in seen) is truth, "the hook sees the branch that ran"


def test_while_loop_reads_what_it_does_not_carry():
    keep_on, body = (
        trace(lambda a, c: a.sum() < 100, X, X),
        trace(lambda a, c: (a.abs() * 2 + c.mean(),), X, X),
    )
    state = X
    while state.sum() < 100:
        state = state.abs() * 2 + X.mean()
    check(
        graph_with(HIGHER.while_loop, (keep_on, body, [0], [1]), (X, X), (state,)), (X, X), (state,)
    )


def test_scan_reads_what_it_does_not_carry():
    step = trace(lambda s, x, c: (s * 0.5 + x, torch.sigmoid(s) * c), X[0], X[0], X[1])
    state, found = X[0], []
    for x in X:
        state, y = state * 0.5 + x, torch.sigmoid(state) * X[1]
        found.append(y)
    inputs, wanted = (X[0], X, X[1]), (state, torch.stack(found))
    check(graph_with(HIGHER.scan, (step, [0], [1], [2]), inputs, wanted), inputs, wanted)


def test_branch_outside_the_contract_is_named():
    with pytest.raises(ContractError, match="graph modules"):
        decompose(graph_with(HIGHER.cond, (0, 1, 1, [1]), (torch.tensor(True), X), (X,)))


@settings(max_examples=20)
@given(prim_calls("while_loop"))
def test_loops_end_where_their_condition_fails(call):
    (result,) = call.run()
    assert not call.params["cond_graph"](result)[0]
    assert result.is_contiguous() and result.data_ptr() != call.operands[0].data_ptr()


def test_control_rules_refuse_what_does_not_fit():
    one, other = decompose(trace(lambda a: a + 1, X)), decompose(trace(lambda a: a.long(), X))
    with pytest.raises(ValueError, match="branches give"):
        prims.cond(torch.tensor(True), X, true_graph=one, false_graph=other)
    with pytest.raises(ValueError, match="needs a bool scalar"):
        prims.cond(X, X, true_graph=one, false_graph=one)
    with pytest.raises(ValueError, match="needs a bool scalar"):
        prims.while_loop(X, cond_graph=one, body_graph=one)
    with pytest.raises(ValueError, match="inputs"):
        prims.scan(X, X, X, body_graph=one, carried=1, length=3)


COLLECTIVES = {
    "all_reduce": lambda c, x, name: c.all_reduce(x, "sum", name),
    "all_gather": lambda c, x, name: c.all_gather_into_tensor(x, dist.get_world_size(), name),
    "reduce_scatter": lambda c, x, name: c.reduce_scatter_tensor(
        x, "sum", dist.get_world_size(), name
    ),
    "broadcast": lambda c, x, name: c.broadcast(x, 0, name),
    "all_to_all": lambda c, x, name: c.all_to_all_single(x, None, None, name),
}


def group_of(size):
    """A process group: gloo with this process alone, or a pretended one."""
    if size == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
        dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=size)
    return dist.group.WORLD.group_name


@pytest.fixture(params=[1, 2])
def group(request):
    yield request.param, group_of(request.param)
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_collectives_are_extern_prims(kind, group):
    size, name = group
    ops = torch.ops._c10d_functional
    x = torch.arange(8.0).reshape(4, 2)
    call = (lambda x: ops.all_to_all_single(x, [4 // size] * size, [4 // size] * size,
        name)) if kind == "all_to_all" else (
        lambda x: COLLECTIVES[kind](ops, x, name))  # fmt: skip
    gm = decompose(trace(lambda x: ops.wait_tensor(call(x * 2)) + 1, x), strict=True)
    check_prims(gm)
    assert set(decomposition_report(gm).extern_prims) == {kind, "wait"}
    (result,) = evaluate(gm, [x])
    expected = ops.wait_tensor(call(x * 2)) + 1
    assert result.shape == expected.shape
    if size == 1:
        assert torch.equal(result, expected)
