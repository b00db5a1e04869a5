"""Each clause of C3 is checked."""

from __future__ import annotations

import pytest
import torch
from primops import ContractError, TensorMeta, check_prims, prims
from torch import fx

aten = torch.ops.aten


def meta(*shape, dtype=torch.float32):
    return TensorMeta.from_tensor(torch.empty(shape, dtype=dtype))


def graph_of(target, args=(), kwargs=None, val=None, dtype=torch.float32, output_val=None):
    """``target(x, y, *args)`` with x and y of shape (2, 3)."""
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in "xy"]
    for node in nodes:
        node.meta["val"] = meta(2, 3, dtype=dtype)
    call = graph.call_function(target, (*nodes, *args), kwargs or {})
    call.meta["val"] = val or meta(2, 3, dtype=dtype)
    output = graph.output((call,))
    output.meta["val"] = output_val or (call.meta["val"],)
    return fx.GraphModule(torch.nn.Module(), graph)


def change(edit):
    gm = graph_of(prims.add)
    edit(gm.graph)
    return gm


def call(graph):
    return next(n for n in graph.nodes if n.op == "call_function")


def seeded_by_hand(graph):
    with graph.inserting_before(graph.output_node()):
        seed = graph.call_function(
            prims.full,
            (),
            {"shape": (), "value": 1, "dtype": torch.int64, "device": torch.device("cpu")},
        )
        seed.meta["val"] = meta(dtype=torch.int64)
        drawn = graph.call_function(prims.uniform, (seed,), {"shape": (2, 3), "offset": 0})
        drawn.meta["val"] = meta(2, 3)


def first_input(graph):
    return graph.find_nodes(op="placeholder")[0]


BAD = {
    "C3.1 target": ("C3.1", lambda: graph_of(torch.add)),
    "C3.1 mutates": ("C3.1", lambda: graph_of(aten.add_.Tensor)),
    "C3.1 method": ("C3.1", lambda: change(lambda g: setattr(call(g), "op", "call_method"))),
    "C3.2 operands": ("C3.2", lambda: graph_of(prims.add, (1,))),
    "C3.2 list operand": ("C3.2", lambda: change(lambda g: setattr(call(g), "args", ([1, 2], 3)))),
    "C3.2 dtypes": ("C3.2", lambda: change(lambda g: first_input(g).meta.update(val=meta(2, 3,
    dtype=torch.int32)))),
    "C3.3 half": ("C3.3", lambda: graph_of(prims.add, dtype=torch.bfloat16)),
    "C3.4 missing": ("C3.4", lambda: change(lambda g: g.get_attr("w"))),
    "C3.4 shape": ("C3.4", lambda: graph_of(prims.add, val=meta(3, 2))),
    "C3.4 dtype": ("C3.4", lambda: graph_of(prims.add, val=meta(2, 3, dtype=torch.float64))),
    "C3.5 node": ("C3.5", lambda: change(lambda g: setattr(call(g), "kwargs",
    {"alpha": call(g).args[0]}))),
    "C3.6 tuple": ("C3.6", lambda: change(lambda g: setattr(g.output_node(), "args", (call(g),)))),
    "C3.6 count": ("C3.6", lambda: graph_of(prims.add, output_val=(meta(2, 3), meta(2, 3)))),
    "C3.6 dtype": ("C3.6", lambda: graph_of(prims.add, output_val=(meta(2, 3, dtype=torch.int64),
    ))),
    "C3.7 seed": ("C3.7", lambda: change(seeded_by_hand)),
}  # fmt: skip


def test_good_graph_passes():
    check_prims(graph_of(prims.add))
    check_prims(graph_of(aten.mm.default))


@pytest.mark.parametrize("case", BAD)
def test_bad_graph_names_the_clause(case):
    clause, make = BAD[case]
    gm = make()
    with pytest.raises(ContractError, match=clause) as caught:
        check_prims(gm)
    assert caught.value.clause == clause
