"""The generated text, golden, and the decisions behind it."""

from __future__ import annotations

import pytest
import sympy
import torch
from inductor_cpp import kernel_text
from inductor_cpp.kernels.access import stride_along
from inductor_cpp.kernels.dtypes import literal
from inductor_cpp.kernels.kernel_plan import Role, make_plan
from inductor_cpp.kernels.printer import print_index
from loopir import parse_expr, parse_kernel, symbol

SOFTMAX = """
# softmax: return torch.softmax(x, -1)
@kernel(device='cpu', vector='r0')
def kernel0(in0: In('bfloat16', 100*s0), out0: Out('bfloat16', 100*s0), s0: Size(hint=32)):
    for p0 in range(s0):
        for r0 in reduce(100):
            a = load(in0, [100*p0 + r0], 'bfloat16')
            b = cast(a, 'float32')
            m = reduce('max', b, 'float32')
        for r0 in reduce(100):
            a1 = load(in0, [100*p0 + r0], 'bfloat16')
            b1 = cast(a1, 'float32')
            c1 = sub(b1, m)
            e1 = exp(c1)
            s = reduce('sum', e1, 'float32')
        for r0 in reduce(100):
            a2 = load(in0, [100*p0 + r0], 'bfloat16')
            b2 = cast(a2, 'float32')
            c2 = sub(b2, m)
            e2 = exp(c2)
            y = div(e2, s)
            o = cast(y, 'bfloat16')
            store(out0, [100*p0 + r0], o)
"""
EMBEDDING = """
@kernel(device='cpu', vector='p1')
def kernel1(in0: In('int64', 64), in1: In('float32', 640), in2: In('float32', 10), out0: Out('float32', 640)):
    for p0 in range(64):
        for p1 in range(10):
            i = load(in0, [p0], 'int64')
            t = indirect(i, 64)
            a = load(in1, [10*t + p1], 'float32')
            b = load(in2, [p1], 'float32')
            y = add(a, b)
            store(out0, [10*p0 + p1], y)
"""


BIASED_ROWS = """
@kernel(device='cpu', vector='r0')
def kernel2(in0: In('float32', 490), in1: In('int64', 49), in2: In('float32', 16), out0: Out('float32', 490)):
    for p0 in range(10):
        for r0 in reduce(49):
            x = load(in0, [49*p0 + r0], 'float32')
            i = load(in1, [r0], 'int64')
            t = indirect(i, 16)
            b = load(in2, [t], 'float32')
            y = add(x, b)
            m = reduce('max', y, 'float32')
        for r0 in reduce(49):
            x1 = load(in0, [49*p0 + r0], 'float32')
            i1 = load(in1, [r0], 'int64')
            t1 = indirect(i1, 16)
            b1 = load(in2, [t1], 'float32')
            y1 = add(x1, b1)
            d = sub(y1, m)
            store(out0, [49*p0 + r0], d)
"""


def test_a_gather_is_kept_for_the_next_pass(harness):
    text = kernel_text(parse_kernel(BIASED_ROWS))
    assert text.count("gather<") == text.count("INDEX_OUT_OF_RANGE") == 1
    index = torch.arange(49) % 16
    harness.add(BIASED_ROWS, torch.randn(490), index, torch.randn(16), torch.zeros(490))
    harness.compare()
    (launch,) = harness.build(parse_kernel(BIASED_ROWS))
    with pytest.raises(IndexError):
        launch(torch.randn(490), index + 1, torch.randn(16), torch.zeros(490))


def test_softmax_text(golden):
    golden(kernel_text(parse_kernel(SOFTMAX)))


def test_embedding_text(golden):
    golden(kernel_text(parse_kernel(EMBEDDING)))


def test_text_is_deterministic():
    assert kernel_text(parse_kernel(SOFTMAX)) == kernel_text(parse_kernel(SOFTMAX))


@pytest.mark.parametrize(
    ("text", "axis", "role"), [(SOFTMAX, "r0", Role.REDUCTION), (EMBEDDING, "p1", Role.POINTS)]
)
def test_plan_follows_the_vector_axis(text, axis, role):
    plan = make_plan(parse_kernel(text))
    assert plan.axis is not None and plan.axis.symbol.name == axis and plan.role is role


def test_kernel_without_vector_axis_is_scalar():
    assert make_plan(parse_kernel(EMBEDDING.replace(", vector='p1'", ""))).role is Role.NONE


@pytest.mark.parametrize(
    ("expr", "step"),
    [
        ("4*p0 + p1", 1),
        ("p0", 0),
        ("7 - p1", -1),
        ("p1 // 4", None),
        ("p1 % 4 + p0", None),
        ("s0*p1", "s0"),
        ("min(p1, 3)", None),
        ("(p1 // 2)*2 + p1 % 2", None),
    ],
)
def test_stride_along(expr, step):
    expected = parse_expr(str(step)) if step is not None else None
    assert stride_along(parse_expr(expr), symbol("p1")) == expected


@pytest.mark.parametrize(
    ("expr", "values"),
    [
        ("p0 - 3*p1 + 7", {"p0": 2, "p1": 5}),
        ("(p0 - 9) // 4", {"p0": 2}),
        ("(p0 - 9) % 4", {"p0": 2}),
        ("min(p0, 3)*max(p0, 5)", {"p0": 4}),
        ("p0**3", {"p0": 3}),
        ("-p0", {"p0": 3}),
    ],
)
def test_printed_indices_have_python_meaning(expr, values):
    # C++ text of these forms is Python, too, once the helpers are named.
    text = print_index(parse_expr(expr))
    scope = {
        "index_div": lambda a, b: a // b,
        "index_mod": lambda a, b: a % b,
        "index_min": min,
        "index_max": max,
        "i64": int,
        "u64": int,
    }
    assert eval(text.replace(" / ", " // "), scope, dict(values)) == eval(
        expr, {"min": min, "max": max}, dict(values)
    )


def test_unprintable_index_is_an_error():
    with pytest.raises(TypeError, match="not an index expression"):
        print_index(sympy.sin(symbol("p0")))


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (0.1, torch.float32, "0.1f"), (1.0, torch.float32, "1.0f"), (1e30, torch.float32, "1e+30f"),
        (1 / 3, torch.float32, "0.33333334f"), (float("-inf"), torch.float64, "-INF64"),
        (-1 << 63, torch.int64, "(-9223372036854775807ll - 1)"), (3, torch.uint8, "u8(3)"),
        (True, torch.bool, "true"),
        (1.0, torch.bfloat16, "bf16{0x3f80}"), (1e300, torch.float32, "INF32"),
    ],
)  # fmt: skip
def test_literals(number, dtype, text):
    assert literal(number, dtype) == text


def test_unsupported_dtype_is_named():
    with pytest.raises(NotImplementedError, match="complex64"):
        literal(1, torch.complex64)
