"""Backward from some results of a program, at points where derivatives of the others are
infinite.
"""

from __future__ import annotations

from functools import reduce

import aotgrad
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = {
    "inverse": lambda a, b: 1 / a,
    "root": lambda a, b: a.sqrt(),
    "logarithm": lambda a, b: a.log(),
    "product": lambda a, b: a * b,
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b * 2,
    "matrix": lambda a, b: a @ b.t() @ a,
    "turned": lambda a, b: a.t(),
    "joined": lambda a, b: torch.cat([a, b])[1:3],
    "total": lambda a, b: a.sum() + b,
    "chosen": lambda a, b: torch.where(a > 0, a, b),
}


@st.composite
def programs(draw):
    """Steps with the places of their operands among the values so far (0 is the input), and the
    places of the results.
    """
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from([*STEPS]), st.integers(0, 5), st.integers(0, 5)),
            min_size=2,
            max_size=6,
        )
    )
    count = len(steps)
    results = draw(st.lists(st.integers(1, count), min_size=2, max_size=3, unique=True))
    given = draw(st.lists(st.sampled_from(results), min_size=1, unique=True))
    return steps, results, given


def run(steps, results):
    def program(w):
        values = [w]
        for name, a, b in steps:
            values.append(STEPS[name](values[a % len(values)], values[b % len(values)]))
        return tuple(values[place] for place in results)

    return program


def gradient(function, places, start=0.0):
    w = torch.tensor([[start, 1.0], [2.0, 3.0]], requires_grad=True)
    outputs = function(w)
    reduce(torch.add, [outputs[i].sum() for i in places]).backward()
    return w.grad


@given(programs())
@settings(max_examples=200)
def test_other_results_take_no_part(drawn):
    steps, results, chosen = drawn
    program, places = run(steps, results), [results.index(place) for place in chosen]
    expected = gradient(program, places)
    found = gradient(aotgrad.aot_function(program, forward_compiler=aotgrad.run_eager), places)
    torch.testing.assert_close(found.nan_to_num(), expected.nan_to_num())
    assert torch.equal(found.isnan(), expected.isnan())


def test_a_set_of_tangents_is_compiled_once():
    graphs = []

    def compiler(gm, inputs):
        graphs.append(gm)
        return aotgrad.run_eager(gm, inputs)

    function = aotgrad.aot_function(
        lambda w: (lambda y: (1 / y, y * 2))(w.exp()), forward_compiler=compiler
    )
    for _ in range(2):
        gradient(function, [1], start=1.0)
    assert len(graphs) == 3
    gradient(function, [0, 1])
    assert len(graphs) == 3
    assert (
        len([n for n in graphs[2].graph.nodes if n.op == "call_function"])
        <= len(graphs[1].graph.nodes) - 4
    )


def test_zeros_that_are_only_added_need_no_graph_of_their_own():
    graphs = []

    def compiler(gm, inputs):
        graphs.append(gm)
        return aotgrad.run_eager(gm, inputs)

    function = aotgrad.aot_function(
        lambda w: (lambda y: (y, y.log().sum()))(w.exp()), forward_compiler=compiler
    )
    gradient(function, [1])
    assert len(graphs) == 2
