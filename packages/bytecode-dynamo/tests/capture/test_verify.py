"""The checker of contract C1 names the clause that a graph violates."""

from __future__ import annotations

import operator

import bytecode_dynamo as bd
import pytest
import torch
from bytecode_dynamo.bytecode import Op
from bytecode_dynamo.tracing.opcodes import HANDLERS, UNSUPPORTED


def captured_graph(**options):
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    bd.optimize(backend, fullgraph=True, **options)(lambda x, y: (x + y).relu())(
        torch.ones(4, 2), torch.ones(4, 2)
    )
    return graphs[0]


def node(gm, op):
    return next(node for node in gm.graph.nodes if node.op == op)


def test_captured_graphs_pass():
    bd.check_captured(captured_graph())
    bd.check_captured(captured_graph(dynamic=True))


def drop_output_tuple(gm):
    node(gm, "output").args = (node(gm, "call_function"),)


def repeat_source(gm):
    first, second, *_ = [n for n in gm.graph.nodes if n.op == "placeholder"]
    second.meta["source"] = first.meta["source"]


def drop_value(gm):
    del node(gm, "call_function").meta["val"]


def drop_stack(gm):
    del node(gm, "call_function").meta["stack_trace"]


def foreign_target(gm):
    node(gm, "call_function").target = lambda a, b: a


def foreign_mode(gm):
    other = captured_graph()
    node(gm, "call_function").meta["val"] = node(other, "call_function").meta["val"]


def drop_static(gm):
    del node(gm, "placeholder").meta["static"]


@pytest.mark.parametrize(
    ("damage", "clause"),
    [
        (drop_output_tuple, "C1.1"),
        (repeat_source, "C1.2"),
        (drop_static, "C1.4"),
        (drop_value, "C1.5"),
        (drop_stack, "C1.5"),
        (foreign_target, "C1.6"),
        (foreign_mode, "C1.7"),
    ],
)
def test_damaged_graph_is_refused(damage, clause):
    gm = captured_graph()
    damage(gm)
    with pytest.raises(bd.ContractError) as caught:
        bd.check_captured(gm)
    assert caught.value.clause == clause


def test_missing_size_is_refused():
    gm = captured_graph(dynamic=True)
    size = next(
        n
        for n in gm.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta["val"], torch.SymInt)
    )
    gm.graph.erase_node(size)
    with pytest.raises(bd.ContractError, match=r"C1\.3"):
        bd.check_captured(gm)


def test_graph_text(golden):
    golden(bd.format_captured(captured_graph(dynamic=True), lines=False))


def test_nodes_carry_values_and_lines():
    call = node(captured_graph(), "call_function")
    assert call.target is operator.add
    assert tuple(call.meta["val"].shape) == (4, 2)
    assert "test_verify.py" in call.meta["stack_trace"]


def test_every_neutral_operation_has_a_handler():
    assert set(HANDLERS) == set(Op)
    assert set(UNSUPPORTED) < set(HANDLERS)
