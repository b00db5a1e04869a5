"""Text forms: expressions, values, types and versions."""

from __future__ import annotations

import ast
import math
from contextlib import suppress

import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symshapes import Ceil, FloorDiv, Mod, ParseError, ShapeEnv, ToFloat, TrueDiv, VersionError
from symshapes.testing.texts import damaged_texts
from symshapes.text.expressions import format_expression, parse_expression
from symshapes.text.fakes import FakeTensors
from symshapes.text.form import TextForm, reading
from symshapes.text.graph_reader import parse_graph
from symshapes.text.graphs import GraphForm
from symshapes.text.tensors import format_tensor_type, parse_tensor_type
from symshapes.text.values import Unwritable, format_value, parse_value

S, T = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))


def tree(text):
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (2 * S + 1, "2*s0 + 1"),
        (FloorDiv(S + 1, 2) * T, "s1*((s0 + 1) // 2)"),
        (Mod(S, 3), "(s0 % 3)"),
        (S * (S - 1) / 2, "s0*(s0 - 1)/2"),
        (TrueDiv(S, T), "TrueDiv(s0, s1)"),
        (Ceil(ToFloat(S) * 0.5), "math.ceil(0.5*float(s0))"),
        (64 * (S + 1) * (T + 1), None),
        (sympy.Mul(64, FloorDiv(S, 2) + 1, T + 1), "64*(s1 + 1)*((s0 // 2) + 1)"),
        (sympy.Max(S, T, 3), "max(3, s0, s1)"),
        (sympy.And(S > 2, sympy.Ne(T, S)), None),
        (sympy.Piecewise((S, S > T), (T, True)), "(s0 if (s0 > s1) else s1)"),
    ],
)
def test_expressions_round_trip(expression, text):
    written = format_expression(expression)
    assert text is None or written == text
    assert parse_expression(tree(written), {"s0": S, "s1": T}) == expression


def test_an_unknown_symbol_is_named_with_its_place():
    with pytest.raises(ParseError, match="column 6: not an expression of sizes: s7"):
        parse_expression(tree("s0 + s7"), {"s0": S})


@pytest.mark.parametrize("text", ["9**9**9", "-(s0 > 1)", "math.floor(s0, 2)"])
def test_what_is_no_expression_is_named_with_its_place(text):
    with pytest.raises(ParseError, match=r"column 1: malformed \(\w+Error: "):
        parse_expression(tree(text), {"s0": S})


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.complex_numbers(), st.just(...),
    st.sampled_from([torch.float32, torch.strided, torch.channels_last, torch.Size((2, 3)),
                     torch.device("cuda", 1), slice(1, None, 2), frozenset({1, 2})]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_values_round_trip(value):
    read = parse_value(tree(format_value(value)))
    assert type(read) is type(value)
    assert format_value(read) == format_value(value)


def test_signed_zeros_and_infinities_keep_their_sign():
    for value in (-0.0, -math.inf):
        assert math.copysign(1, parse_value(tree(format_value(value)))) == -1


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "torch.load", "x", "torch.device('moon')", "{[]: 1}",
     "torch.Size((2**70,))"],
)  # fmt: skip
def test_a_text_calls_and_finds_nothing_else(text):
    with pytest.raises(ParseError, match="not a value"):
        parse_value(tree(text))


def test_a_value_without_a_text_is_named():
    with pytest.raises(Unwritable, match=r"a value of builtins\.object has no text form"):
        format_value([object()])


def test_deeply_nested_values_are_an_error():
    node = ast.Constant(1)
    for _ in range(10_000):
        node = ast.UnaryOp(ast.USub(), node)
    with pytest.raises(ParseError, match="nested too deeply"):
        parse_value(node)


@pytest.mark.parametrize("text", ["9**9**9", "s0**9**9", "(s0**999)**999", "2**-99999"])
def test_powers_that_take_hours_are_an_error(text):
    with reading(), pytest.raises(ParseError, match="too large"):
        parse_expression(tree(text), {"s0": S})


@pytest.mark.parametrize(
    "text",
    [
        "f32[4, 8]",
        "f32[()]",
        "bf16[4, 8](1, 4)",
        "i64[3](device='cuda:0')",
        "c64[2](conj=True)",
        "f32[2, 2](4, 1, offset=3, requires_grad=True)",
        "float8_e5m2[0]",
    ],
)
def test_fakes_round_trip(text):
    made = FakeTensors(ShapeEnv()).make(parse_tensor_type(tree(text), ast.literal_eval))
    assert format_tensor_type(FakeTensors.describe(made), repr) == text


V1 = TextForm("shop.order", 1)


def renamed(module):
    class Rename(ast.NodeTransformer):
        def visit_Name(self, node):
            return ast.copy_location(ast.Name(node.id.replace("old", "new"), node.ctx), node)

    return Rename().visit(module)


V3 = TextForm("shop.order", 3, {1: renamed, 2: lambda module: module})


def test_an_older_version_is_rewritten():
    assert V1.write("old\n") == "# shop.order 1\nold\n"
    assert ast.unparse(V3.parse(V1.write("old\n"))) == "new"
    assert ast.unparse(V3.parse("old\n")) == "old"  # stated nothing: of the current version


def test_parts_carry_their_own_version():
    letter = TextForm("post.letter", 7, parts=(V3,))
    assert letter.write("") == "# post.letter 7, shop.order 3\n"
    assert ast.unparse(letter.parse("# post.letter 7, shop.order 1\nold")) == "new"
    with pytest.raises(VersionError, match="version 4 of shop.order"):
        letter.parse("# post.letter 7, shop.order 4\nold")


def test_other_versions_and_forms_are_one_error():
    with pytest.raises(VersionError, match="reads versions up to 1: install a newer shop"):
        V1.parse(V3.write("new\n"))
    with pytest.raises(VersionError, match="reads versions 2 to 3: convert it with an older shop"):
        TextForm("shop.order", 3, {2: renamed}).parse(V1.write("old\n"))
    with pytest.raises(ParseError, match="line 1, column 1: this text is a shop.order, not a"):
        TextForm("shop.bill", 1).parse(V1.write("old\n"))


GRAPHS = GraphForm(TextForm("test.graph", 1), FakeTensors)
GRAPH = """s0 = Size(lower=2, hint=4)

def graph(x: f32[s0, 2]):
    relu: f32[s0, 2] = ops.aten.relu.default(x)
    return (relu,)
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hint=4)", "hint=4.5)", "line 1, column 1: not a declaration of a symbol"),
        ("lower=2", "least=2", "not a declaration of a symbol"),
        ("f32[s0, 2])", "f33[s0, 2])", "line 3, column 14: not a dtype: f33"),
        ("f32[s0, 2])", "f32[s1, 2])", "not an expression of sizes: s1"),
        ("f32[s0, 2])", "f32[s0, 2](1))", "1 strides of 2 dims"),
        ("f32[s0, 2])", "f32[s0, 2](moon=1))", "unknown property moon"),
        ("default(x)", "default(y)", "not a value: y"),
        ("ops.aten.relu.default", "ops.aten.rely.default", "not a function that a graph may"),
        ("ops.aten.relu.default", "os.system", "not a function that a graph may call: os.system"),
        ("relu: f32[s0, 2] = ", "", "expected 'name: type = call"),
        ("relu: f32", "x: f32", "not a name for a node, or one that is taken"),
        ("relu: f32[s0, 2]", "relu: meta(f32[s0, 2], colour=1)", "unknown metadata"),
        ("relu.default(x)", "relu.default(graphs.body_1)", "the graph must stand before"),
        ("ops.aten.relu.default(x)", "constant('w')", "not among the constants"),
        ("    return (relu,)\n", "", "expected a return statement"),
        ("graph(x", "diagram(x", "the text has no function graph"),
        ("(relu,)\n", "(relu,\n", "was never closed"),
        ("x: f32[s0, 2])", "x)", "expected a type"),
        ("x: f32[s0, 2])", "*x: f32[s0, 2])", "column 12: expected a plain parameter: x"),
        ("x: f32[s0, 2])", "*, x: f32[s0, 2])", "column 14: expected a plain parameter"),
        ("x: f32[s0, 2])", "x: f32[s0, 2] = 3)", "column 27: expected a plain parameter: 3"),
    ],
)
def test_errors_say_what_and_where(old, new, message):
    assert old in GRAPH
    with pytest.raises(ParseError, match=message):
        parse_graph(GRAPH.replace(old, new, 1), GRAPHS)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_texts(V1.write(GRAPH).replace("shop.order", "test.graph")))
def test_damaged_texts_are_parse_errors(text):
    with suppress(ParseError):
        parse_graph(text, GRAPHS)


@pytest.mark.parametrize(
    "text",
    ["(" * 10_000, "-" * 10_000 + "1", "x." * 10_000 + "y", "1+" * 10_000 + "1", "\0", "\ud800",
     "9" * 5000, f"# test.graph {'9' * 5000}\n", f"x = Size(lower={'[' * 10_000}"],
    ids=range(9),
)  # fmt: skip
def test_what_python_refuses_is_a_parse_error(text):
    with pytest.raises(ParseError):
        parse_graph(text, GRAPHS)


@pytest.mark.parametrize("text", ["x" + ".y" * 90_000, "-" * 90_000 + "x"])
def test_a_text_nested_too_deeply_is_a_parse_error(text):
    with pytest.raises(ParseError, match="nested too deeply"):
        TextForm("symshapes.example", 1).parse(text)
