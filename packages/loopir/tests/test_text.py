import math
from contextlib import suppress

import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from loopir import (
    FloorDiv,
    Instruction,
    Mod,
    ParseError,
    VersionError,
    check_kernel,
    evaluate_kernel,
    format_expr,
    format_kernel,
    parse_expr,
    parse_kernel,
    parse_kernels,
    symbol,
)
from loopir.ir.text import KERNELS, format_instruction
from symshapes.testing.texts import damaged_texts

SOFTMAX = """\
@kernel(device='cpu', vector='r0')
def softmax(in0: In('float32', 64*s0), out0: Out('float32', 64*s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for r0 in reduce(64):
            v0 = load(in0, [64*x0 + r0], 'float32')
            v1 = reduce('max', v0, 'float32')
        for r0 in reduce(64):
            v2 = load(in0, [64*x0 + r0], 'float32')
            v3 = sub(v2, v1)
            v4 = exp(v3)
            v5 = reduce('sum', v4, 'float32')
        for r0 in reduce(64):
            v6 = load(in0, [64*x0 + r0], 'float32')
            v7 = sub(v6, v1)
            v8 = exp(v7)
            v9 = div(v8, v5)
            store(out0, [64*x0 + r0], v9)
"""


def test_text_round_trips():
    kernel = parse_kernel(SOFTMAX)
    assert format_kernel(kernel) == SOFTMAX
    assert parse_kernel(format_kernel(kernel)) == kernel
    check_kernel(kernel)


def test_several_kernels_parse():
    assert [
        kernel.name
        for kernel in parse_kernels(SOFTMAX + "\n" + SOFTMAX.replace("def softmax", "def other"))
    ] == [
        "softmax",
        "other",
    ]


def test_evaluator_is_softmax():
    x, out = torch.randn(5, 64), torch.empty(5, 64)
    evaluate_kernel(parse_kernel(SOFTMAX), [x, out], [5])
    torch.testing.assert_close(out, x.softmax(-1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("load(in0", "laod(in0", "unknown operation 'laod'"),
        ("sub(v2, v1)", "sub(v2, v7)", "not a value: v7"),
        ("sub(v2, v1)", "sub(v2)", "wrong arguments"),
        ("'float32')\n            v1", "'float33')\n            v1", "not a dtype"),
        ("[64*x0 + r0]", "[64/x0 + r0]", "not an index expression"),
        ("in reduce(64):", "in repeat(64):", "unknown loop repeat"),
        ("In('float32', 64*s0)", "Input('float32', 64*s0)", "expected In"),
        ("In('float32', 64*s0)", "In('float32')", "expected In"),
        ("@kernel(device='cpu', vector='r0')\n", "", "expected '@kernel"),
    ],
)
def test_parse_error_has_message_and_position(old, new, message):
    with pytest.raises(ParseError, match=message) as error:
        parse_kernel(SOFTMAX.replace(old, new, 1))
    assert error.value.line > 0 and error.value.column > 0


def test_syntax_error_is_a_parse_error():
    with pytest.raises(ParseError, match="line 3"):
        parse_kernel(SOFTMAX.replace("range(s0):", "range(s0)"))


x, y, s = symbol("x0"), symbol("x1"), symbol("s0")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (64 * x + y, "64*x0 + x1"),
        (x - 3, "x0 - 3"),
        (-x + 3, "-x0 + 3"),
        (FloorDiv(x + 1, 4) * 2, "2*((x0 + 1) // 4)"),
        (Mod(x, s) * s, "(x0 % s0)*s0"),
        (sympy.Min(x, 4) + sympy.Max(y, x), "max(x0, x1) + min(4, x0)"),
        (s**2 * x, "s0**2*x0"),
        ((s + 1) * x, "(s0 + 1)*x0"),
        (sympy.Integer(-3), "-3"),
        (-2 * x * y, "-2*x0*x1"),
    ],
)
def test_expressions_print_and_parse_back(expr, text):
    assert format_expr(expr) == text
    assert parse_expr(text) == expr


def test_special_numbers_print():
    for number, text in (
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (True, "True"),
        (1.5, "1.5"),
    ):
        assert (
            format_instruction(Instruction("v0", "constant", (number,), torch.float32))
            == f"v0 = constant({text}, 'float32')"
        )


def test_stored_texts_state_their_version():
    stored = KERNELS.write(SOFTMAX)
    assert stored.startswith("# loopir.kernel 1\n")
    assert parse_kernel(stored) == parse_kernel(SOFTMAX)
    with pytest.raises(VersionError, match="version 2 of loopir.kernel, and this loopir reads"):
        parse_kernel(stored.replace("kernel 1", "kernel 2", 1))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_texts(KERNELS.write(SOFTMAX)))
def test_damaged_texts_are_parse_errors(text):
    with suppress(ParseError):
        parse_kernel(text)
    with suppress(ParseError):
        parse_expr(text)
