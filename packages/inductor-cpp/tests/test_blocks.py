"""Kernels cut into blocks: tiles for transposed accesses, groups of rows for column reductions,
scans in registers.
"""

from __future__ import annotations

import pytest
import torch
from inductor_cpp import kernel_text
from loopir import parse_kernel

SIZES = [(1, 1), (16, 16), (17, 64), (65, 33), (130, 70)]
DTYPES = ["float32", "bfloat16", "int64", "int32", "int8", "bool", "float64"]


def values(count: int, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(count).to(kind)
    return torch.randint(0, 2 if kind is torch.bool else 100, (count,)).to(kind)


def transposed_text(a: int, b: int, dtype: str, out: str) -> str:
    return f"""
@kernel(device='cpu', vector='p1', tile='p0')
def turn(in0: In('{dtype}', {a * b + 3}), in1: In('{dtype}', {a * b}), out0: Out('{dtype}', {a * b})):
    for p0 in range({a}):
        for p1 in range({b}):
            v = load(in0, [{a}*p1 + p0 + 3], '{dtype}')
            w = load(in1, [{b}*p0 + p1], '{dtype}')
            m = lt(w, v)
            y = where(m, v, w)
            store(out0, [{out}], y)
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_transpose(harness_any, dtype: str) -> None:
    torch.manual_seed(0)
    for a, b in SIZES:
        for out in (f"{b}*p0 + p1", f"{a}*p1 + p0"):
            inputs = (
                values(a * b + 3, dtype),
                values(a * b, dtype),
                torch.zeros(a * b, dtype=getattr(torch, dtype)),
            )
            harness_any.add(transposed_text(a, b, dtype, out), *inputs)
    harness_any.compare()


def test_transposed_access_goes_through_tiles() -> None:
    text = kernel_text(parse_kernel(transposed_text(64, 64, "float32", "64*p1 + p0")))
    assert text.count("tile<f32>") == 2 and "gather" not in text and "scatter" not in text


def test_next_tile_enters_fewer_rows() -> None:
    """Of three accesses, two go in order along one axis and one along the other, whose rows lie a
    step of the first apart.
    """
    steps = {
        ratio: kernel_text(parse_kernel(transposed_text(64 * ratio, 64, "float32", "64*p0 + p1")))
        for ratio in (1, 4)
    }
    assert "in1 + (64*p0 + (begin + TILE))" in steps[1]
    assert "in1 + (64*(p0 + TILE) + begin)" in steps[4]


COLUMNS = """
@kernel(device='cpu', vector='p0')
def columns_of(
    in0: In('{dtype}', {columns}*s0*{depth}), in1: In('float32', {columns}), out0: Out('float32', {columns}),
    s0: Size(hint={rows})
):
    for p0 in range({columns}):
        bias = load(in1, [p0], 'float32')
        for r0 in reduce({depth}):
            for r1 in reduce(s0):
                v = load(in0, [{columns}*s0*r0 + {columns}*r1 + p0], '{dtype}')
                x = cast(v, 'float32')
                y = add(x, bias)
                t = reduce('sum', y, 'float32')
                u = reduce('max', y, 'float32')
        z = add(t, u)
        w = mul(z, bias)
        store(out0, [p0], w)
"""


@pytest.mark.parametrize("rows", [1, 16, 100, 333])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_column_reductions(harness_any, rows: int, dtype: str) -> None:
    torch.manual_seed(rows)
    for columns in (1, 40, 512, 700):
        for depth in (1, 3):
            text = COLUMNS.format(rows=rows, columns=columns, depth=depth, dtype=dtype)
            inputs = (
                values(columns * rows * depth, dtype),
                values(columns, "float32"),
                torch.zeros(columns),
            )
            harness_any.add(text, *inputs, sizes=[rows], rtol=1e-4, atol=1e-3)
    harness_any.compare()


def test_long_column_sum_is_exact_enough(harness_any) -> None:
    text = """
@kernel(device='cpu', vector='p0')
def total(in0: In('float32', 3200000), out0: Out('float32', 32)):
    for p0 in range(32):
        for r0 in reduce(100000):
            v = load(in0, [32*r0 + p0], 'float32')
            t = reduce('sum', v, 'float32')
        store(out0, [p0], t)
"""
    (launch,) = harness_any.build(parse_kernel(text))
    x, out = torch.full((100000, 32), 0.1), torch.zeros(32)
    launch(x, out)
    torch.testing.assert_close(out, x.double().sum(0).float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_scans(harness_any, kind: str) -> None:
    torch.manual_seed(1)
    for dtype in ("float32", "float64", "int64", "int32"):
        for columns in (1, 7, 16, 33, 200):
            text = f"""
@kernel(device='cpu')
def scanned(in0: In('{dtype}', {3 * columns}), out0: Out('{dtype}', {3 * columns})):
    for p0 in range(3):
        for r0 in reduce({columns}):
            v = load(in0, [{columns}*p0 + r0], '{dtype}')
            t = scan('{kind}', v)
            store(out0, [{columns}*p0 + r0], t)
"""
            x = (
                values(3 * columns, dtype)
                if kind == "sum"
                else (values(3 * columns, dtype) % 3 + 1)
            )
            harness_any.add(text, x, torch.zeros(3 * columns, dtype=x.dtype), rtol=1e-5, atol=1e-5)
    harness_any.compare()


def test_writes_of_large_buffers_are_asked_for() -> None:
    text = """
@kernel(device='cpu', vector='p0')
def doubled(in0: In('float32', {n}), out0: Out('float32', {n})):
    for p0 in range({n}):
        a = load(in0, [p0], 'float32')
        y = add(a, a)
        store(out0, [p0], y)
"""
    texts = [kernel_text(parse_kernel(text.format(n=n))) for n in (1 << 12, 1 << 20)]
    assert [text.count("ask_for_lanes<W, 1>(out0 + p0") for text in texts] == [0, 1]


def test_large_outputs_ask_for_large_pages(harness):
    """Asked for where the hint is large; whether the system hears it is decided by the size at the
    call.
    """
    text = """
@kernel(device='cpu', vector='p0')
def kernel0(in0: In('float32', s0), out0: Out('float32', s0), out1: Out('bfloat16', s0), s0: Size(hint={hint})):
    for p0 in range(s0):
        a = load(in0, [p0], 'float32')
        y = add(a, a)
        b = cast(y, 'bfloat16')
        store(out0, [p0], y)
        store(out1, [p0], b)
"""
    large = text.format(hint=(8 << 20) + 1)
    assert "want_large_pages<33554432>(out0, 4*s0);" in kernel_text(parse_kernel(large))
    assert "(out1, 2*s0)" not in kernel_text(parse_kernel(large))
    assert "want_large_pages" not in kernel_text(parse_kernel(text.format(hint=8 << 20)))
    for size in (5, (8 << 20) + 4097):
        tensors = [
            torch.arange(size, dtype=torch.float32),
            torch.zeros(size),
            torch.zeros(size, dtype=torch.bfloat16),
        ]
        harness.add(large, *tensors, sizes=(size,))
    harness.compare()
