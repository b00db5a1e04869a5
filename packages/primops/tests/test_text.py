"""The text form of prim graphs."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from primops import ContractError, decompose, evaluate, prims
from primops.testing.backend import prim_graphs
from primops.text import FORM, format_graph, parse_graph
from symshapes import ParseError, VersionError
from symshapes.testing.texts import damaged_texts
from symshapes.text.values import Unwritable

TEXT = """# primops.graph 6
s0 = Size(lower=2, hint=3)

def graph(s0: size(s0), x: f32[s0, 2]) -> (f32[s0], f32[2*s0]):
    reduced: f32[s0] = prims.sum(x, dims=(1,))
    flat: f32[2*s0] = prims.reshape(x, shape=(size(2*s0),))
    exp: meta(f32[2*s0], rounds_to=torch.float16) = prims.exp(flat)
    return (reduced, exp)
"""


def test_a_graph_with_symbolic_sizes():
    gm = parse_graph(TEXT)
    assert format_graph(gm) == TEXT
    x = torch.arange(6.0).view(3, 2)
    reduced, exp = evaluate(gm, [3, x])
    assert reduced.tolist() == [1, 5, 9] and torch.equal(exp, x.view(-1).exp())


def test_what_is_read_is_checked():
    with pytest.raises(ContractError, match=r"C3\.4"):
        parse_graph(TEXT.replace("reduced: f32[s0]", "reduced: f32[2]"))


def test_a_text_of_a_newer_op_set_is_one_error():
    newer = TEXT.replace("primops.graph 6", "primops.graph 7")
    with pytest.raises(VersionError, match="version 7 of primops.graph, and this primops reads"):
        parse_graph(newer)


def test_an_unknown_prim_is_named():
    with pytest.raises(ParseError, match="line 7, column 53: not a function.*prims.exq"):
        parse_graph(TEXT.replace("prims.exp", "prims.exq"))


def test_constants_are_given():
    text = "def graph(x: f32[2]) -> (f32[2],):\n    w: f32[2] = constant('part.w')\n"
    text = FORM.write(text + "    y: f32[2] = prims.mul(x, w)\n    return (y,)\n")
    gm = parse_graph(text, {"part.w": torch.tensor([2.0, 3.0])})
    assert format_graph(gm) == text
    assert evaluate(gm, [torch.tensor([1.0, 1.0])])[0].tolist() == [2, 3]


ROUNDED = FORM.write("""\
def graph(x: f32[2]) -> (f16[2],):
    exp: meta(f32[2], rounds_to=torch.float16) = prims.exp(x)
    neg: f32[2] = prims.neg(exp)
    convert: f16[2] = prims.convert(neg, dtype=torch.float16)
    return (convert,)
""")
EXACT = ROUNDED.replace("(f16[2],)", "(f16[2], f32[2])").replace(
    "    return (convert,)",
    "    same: f32[2] = prims.exp(x)\n    sin: f32[2] = prims.sin(same)\n    return (convert, sin)",
)


def test_decomposing_again_keeps_where_eager_rounds():
    assert format_graph(decompose(parse_graph(ROUNDED))) == ROUNDED


def test_a_value_that_is_also_read_exactly_is_not_rounded():
    again = format_graph(decompose(parse_graph(EXACT)))
    assert again.count("prims.exp") == 1 and "rounds_to" not in again


def test_what_has_no_text_is_described():
    gm = parse_graph(ROUNDED)
    gm.graph.find_nodes(op="call_function", target=prims.neg)[0].target = test_constants_are_given
    with pytest.raises(Unwritable, match="test_constants_are_given has no text form, at the node"):
        format_graph(gm)
    assert re.search(r"neg: f32\[2\] = <the function .*>\(exp\)", format_graph(gm, strict=False))


@settings(deadline=None)
@given(prim_graphs())
def test_random_graphs_round_trip(made):
    gm, inputs = made.graph, made.inputs
    text = format_graph(gm)
    again = parse_graph(text)
    assert format_graph(again) == text
    for result, expected in zip(evaluate(again, inputs), evaluate(gm, inputs), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_texts(TEXT))
def test_damaged_texts_are_parse_errors(text):
    with suppress(ParseError, ContractError):
        parse_graph(text)
