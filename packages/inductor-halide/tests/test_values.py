"""Values where Halide has rules of its own: NaN, subnormals, overflow, halves, errors."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("halide")


def unary(op: str, dtype: str, count: int, result: str | None = None) -> str:
    result = result or dtype
    return f"""
@kernel(device='cpu', vector='x0')
def k(in0: In('{dtype}', {count}), out0: Out('{result}', {count})):
    for x0 in range({count}):
        v0 = load(in0, [x0], '{dtype}')
        v1 = {op}
        store(out0, [x0], v1)
"""


SPECIAL = [
    0.0, -0.0, 1e-45, -1e-40, 1e-38, 0.5, -0.5, 1.0, -1.0, 8.0, 88.7, 88.8, -87.4, -103.9, -104.1,
    1e10, -1e10, 3e38, -3e38, math.inf, -math.inf, math.nan,
]  # fmt: skip


@pytest.mark.parametrize(
    "op", ["exp", "expm1", "log", "log1p", "erf", "tanh", "neg", "abs", "sqrt"]
)
def test_special_floats(op, build):
    values = torch.tensor(SPECIAL)
    out = torch.empty_like(values)
    build(unary(f"{op}(v0)", "float32", len(values)))(values, out)
    expected = getattr(torch, op)(values.double()).float()
    torch.testing.assert_close(out, expected, rtol=3e-7, atol=0.0, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(out.signbit()[numbers], expected.signbit()[numbers])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_every_half(half, build):
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    halves = bits.view(getattr(torch, half))
    wide, back = torch.empty(1 << 16), torch.empty_like(halves)
    build(unary("cast(v0, 'float32')", half, 1 << 16, "float32"))(halves, wide)
    torch.testing.assert_close(wide, halves.float(), rtol=0, atol=0, equal_nan=True)
    build(unary(f"cast(v0, '{half}')", "float32", 1 << 16, half))(wide, back)
    numbers = ~halves.isnan()
    assert torch.equal(back.view(torch.int16)[numbers], bits[numbers])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_rounding_to_halves(half, build):
    bits = torch.randint(-(1 << 31), 1 << 31, (100_000,)).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.randn(50_000) * 1e-5, torch.randn(50_000)])
    out = torch.empty(len(values), dtype=getattr(torch, half))
    build(unary(f"cast(v0, '{half}')", "float32", len(values), half))(values, out)
    torch.testing.assert_close(out, values.to(out.dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_around(dtype, compare):
    name, info = str(dtype).removeprefix("torch."), torch.iinfo(dtype)
    a = torch.tensor([info.max, info.min, info.min, info.max, 7, -7], dtype=dtype)
    b = torch.tensor([1, -1, info.min, info.max, 3, 3], dtype=dtype)
    lines = "\n        ".join(
        f"store(out{n}, [x0], {op}(v0, v1))".replace(
            "store", f"v{n + 2} = {op}(v0, v1)\n        store", 1
        ).replace(f", {op}(v0, v1))", f", v{n + 2})")
        for n, op in enumerate(["add", "sub", "mul"])
    )
    outs = ", ".join(f"out{n}: Out('{name}', 6)" for n in range(3))
    text = f"""
@kernel(device='cpu', vector='x0')
def k(in0: In('{name}', 6), in1: In('{name}', 6), {outs}):
    for x0 in range(6):
        v0 = load(in0, [x0], '{name}')
        v1 = load(in1, [x0], '{name}')
        {lines}
"""
    compare(text, a, b, *(torch.zeros(6, dtype=dtype) for _ in range(3)))


DIVISION = """
@kernel(device='cpu', vector='x0')
def k(in0: In('int64', 11), in1: In('int64', 11), out0: Out('int64', 11)):
    for x0 in range(11):
        v0 = load(in0, [x0], 'int64')
        v1 = load(in1, [x0], 'int64')
        v2 = floordiv(v0, v1)
        store(out0, [x0], v2)
"""


def test_integer_division_by_zero(build):
    launch, out = build(DIVISION), torch.empty(11, dtype=torch.int64)
    a, b = torch.arange(-5, 6), torch.tensor([3, -3] * 5 + [2])
    launch(a, b, out)
    assert torch.equal(out, a // b)
    b[4] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        launch(a, b, out)


TWO_OUTPUTS = """
@kernel(device='cpu', vector='x0')
def k(in0: In('float32', 37), out0: Out('float32', 37), out1: Out('float32', 37)):
    for x0 in range(37):
        v0 = load(in0, [x0], 'float32')
        v1 = add(v0, v0)
        store(out0, [x0], v1)
        v2 = mul(v0, v0)
        store(out1, [x0], v2)
"""


@pytest.mark.parametrize("schedule", ["simple", "Mullapudi2016"])
def test_input_that_is_the_memory_of_an_output(schedule, build):
    launch, x, y = build(TWO_OUTPUTS, schedule), torch.arange(37.0), torch.empty(37)
    for shared in (0, 1):
        memory = x.clone()
        launch(memory, *((memory, y) if shared == 0 else (y, memory)))
        doubled, squared = (memory, y) if shared == 0 else (y, memory)
        assert torch.equal(doubled, x + x)
        assert torch.equal(squared, x * x)


IN_PLACE = """
@kernel(device='cpu', vector='x0')
def k(inout0: InOut('float32', 21), inout1: InOut('float32', 21)):
    for x0 in range(21):
        v0 = load(inout0, [x0], 'float32')
        v1 = load(inout1, [x0], 'float32')
        v2 = add(v0, v1)
        store(inout0, [x0], v2)
        v3 = sub(v0, v1)
        store(inout1, [x0], v3)
"""


def test_buffers_that_change_by_each_other(compare):
    compare(IN_PLACE, torch.randn(21), torch.randn(21))


SUM_OF_WHAT_IS_OVERWRITTEN = """
@kernel(device='cpu', vector='r0')
def k(inout0: InOut('float32', 9*5), out0: Out('float32', 9)):
    for x0 in range(9):
        for r0 in reduce(5):
            v0 = load(inout0, [5*x0 + r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
            v2 = exp(v0)
            store(inout0, [5*x0 + r0], v2)
        store(out0, [x0], v1)
"""


def test_buffer_that_is_read_and_overwritten_by_different_stages(compare):
    compare(SUM_OF_WHAT_IS_OVERWRITTEN, torch.randn(45), torch.empty(9))


STORED_BEFORE_IT_IS_READ_AGAIN = """
@kernel(device='cpu', vector='r0')
def k(inout0: InOut('float32', 9), in0: In('float32', 9*5), out0: Out('float32', 9*5)):
    for x0 in range(9):
        v0 = load(inout0, [x0], 'float32')
        v1 = exp(v0)
        v2 = add(v1, v1)
        store(inout0, [x0], v2)
        for r0 in reduce(5):
            v3 = load(in0, [5*x0 + r0], 'float32')
            v4 = mul(v3, v1)
            store(out0, [5*x0 + r0], v4)
"""


def test_value_from_a_buffer_that_its_body_stores_to(compare):
    compare(STORED_BEFORE_IT_IS_READ_AGAIN, torch.randn(9), torch.randn(45), torch.empty(45))


ADAM = """
@kernel(device='cpu', vector='x0')
def k(inout0: InOut('float32', 40), inout1: InOut('float32', 40), in0: In('float32', 40)):
    for x0 in range(40):
        v0 = load(inout0, [x0], 'float32')
        v1 = load(in0, [x0], 'float32')
        v2 = add(v0, v1)
        store(inout0, [x0], v2)
        v3 = load(inout1, [x0], 'float32')
        v4 = sub(v3, v2)
        store(inout1, [x0], v4)
"""


@pytest.mark.parametrize("start", [0, 1, 3])
def test_moments_at_any_alignment(start, build):
    launch = build(ADAM)
    moment, parameter, gradient = (torch.randn(44)[start : start + 40] for _ in range(3))
    m, p = moment + gradient, parameter - (moment + gradient)
    launch(moment, parameter, gradient)
    assert torch.equal(moment, m)
    assert torch.equal(parameter, p)


CONSTANT_OVER_THE_REDUCTION = """
@kernel(device='cpu', vector='r0')
def k(in0: In('float32', 3), out0: Out('float32', 3)):
    for x0 in range(3):
        for r0 in reduce(35):
            v0 = load(in0, [x0], 'float32')
            v1 = reduce('sum', v0, 'float32')
        store(out0, [x0], v1)
"""


def test_value_that_no_loop_of_the_reduction_changes(compare):
    compare(CONSTANT_OVER_THE_REDUCTION, torch.randn(3), torch.empty(3))


TRANSPOSED = """
@kernel(device='cpu', vector='x1')
def k(in0: In('float32', 20*s0), out0: Out('float32', 20*s0), s0: Size(hint=8)):
    for x0 in range(20):
        for x1 in range(s0):
            v0 = load(in0, [s0*x0 + x1], 'float32')
            store(out0, [x0 + 20*x1], v0)
"""


@pytest.mark.parametrize("size", [0, 1, 3, 40])
def test_sizes_below_and_above_a_vector(size, compare):
    x = torch.randn(20 * size)
    compare(TRANSPOSED, x, torch.empty(20 * size), sizes=(size,))


def test_index_of_more_than_31_bits(build):
    from loopir import UnsupportedKernelError

    launch = build(TRANSPOSED)
    with pytest.raises(UnsupportedKernelError, match="31 bits"):
        launch(torch.empty(0), torch.empty(0), 1 << 30)
