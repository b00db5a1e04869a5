"""Loads, stores, masks, indirect access, accumulation and symbolic sizes."""

from __future__ import annotations

import pytest
import torch
from loopir import parse_kernel

FLOAT = torch.arange(4096, dtype=torch.float32)


def test_strided_reversed_transposed_and_broadcast(harness_any):
    text = """
@kernel(device='cpu', vector='{axis}')
def kernel0(in0: In('{d}', 2000), in1: In('{d}', 2000), in2: In('{d}', 37), in3: In('{d}', 1), out0: Out('{d}', 37*41), out1: Out('{d}', 37*41)):
    for p0 in range(37):
        for p1 in range(41):
            a = load(in0, [37*p1 + p0], '{d}')
            b = load(in1, [1999 - p1 - 41*p0], '{d}')
            c = load(in2, [p0], '{d}')
            e = load(in3, [0], '{d}')
            f = load(in0, [p1 % 5 + (p1 // 5)*3 + p0], '{d}')
            g = where(m, a, b)
            h = where(m, c, e)
            store(out0, [41*p0 + p1], g)
            store(out1, [p0 + 37*p1], h)
"""
    text = text.replace(
        "            g = where",
        "            i = index_expr(p0 - p1, 'int64')\n            z = constant(0, 'int64')\n            m = lt(i, z)\n            g = where",
    )
    for axis in ("p1", "p0"):
        for dtype in ("float32", "int64", "bfloat16", "bool", "uint8", "float64"):
            kind = getattr(torch, dtype)
            data = (torch.arange(2000) % 2 == 0) if dtype == "bool" else torch.arange(2000).to(kind)
            tensors = [
                data,
                data.flip(0),
                data[:37],
                data[:1],
                torch.zeros(1517, dtype=kind),
                torch.zeros(1517, dtype=kind),
            ]
            harness_any.add(text.format(axis=axis, d=dtype), *tensors, label=f"{axis} {dtype}")
    harness_any.compare()


SECONDS = """
@kernel(device='cpu', vector='p1')
def kernel0(in0: In('{d}', 1 + 2*{n}), in1: In('{d}', 3), out0: Out('{d}', 3*(2*{n} - 1)), out1: Out('{d}', 3*{n}), out2: Out('{d}', 3*{n})):
    for p0 in range(3):
        for p1 in range({n}):
            a = load(in0, [2*p1 + 1], '{d}')
            i = index_expr(2*p1 - 2 + p0, 'int64')
            zero = constant(0, 'int64')
            m = le(zero, i)
            b = load(in0, [2*p1 + p0 - 2], '{d}', mask=m, other={other})
            j = index_expr(p0 - 1 - p1 // {n}, 'int64')
            k = le(zero, j)
            mk = and_(m, k)
            c = load(in1, [p0 - 1], '{d}', mask=mk, other={other})
            store(out0, [2*p1 + p0*(2*{n} - 1)], a)
            store(out1, [p1 + {n}*p0], b)
            store(out2, [p1 + {n}*p0], c)
"""


def test_every_second_element_and_one_masked_place(harness_any):
    for n in (5, 16, 37, 64, 131):
        for dtype in (
            "float32",
            "int64",
            "bfloat16",
            "bool",
            "uint8",
            "float64",
            "int32",
            "int16",
            "float16",
        ):
            kind = getattr(torch, dtype)
            data = (
                (torch.arange(1 + 2 * n) % 3 == 0)
                if dtype == "bool"
                else (torch.arange(1 + 2 * n) % 97).to(kind)
            )
            outputs = [torch.zeros(3 * m, dtype=kind) for m in (2 * n - 1, n, n)]
            text = SECONDS.format(n=n, d=dtype, other=True if dtype == "bool" else 7)
            harness_any.add(text, data, data[:3].clone(), *outputs, label=f"{n} {dtype}")
    harness_any.compare()


MASKED = """
@kernel(device='cpu', vector={axis})
def kernel0(in0: In('{d}', 100), out0: Out('{d}', 7*130)):
    for p0 in range(7):
        for p1 in range(130):
            i = index_expr(p1, 'int64')
            lo = constant(20, 'int64')
            hi = constant(120, 'int64')
            a = le(lo, i)
            b = lt(i, hi)
            m = and_(a, b)
            v = load(in0, [p1 - 20], '{d}', mask=m, other={other})
            j = index_expr(p0, 'int64')
            three = constant(3, 'int64')
            n = lt(j, three)
            w = load(in0, [40 * p0], '{d}', mask=n, other={other})
            u = load(in0, [99 - p1], '{d}', mask=k, other={other})
            c = where(n, v, w)
            store(out0, [130*p0 + p1], c)
"""
MASKED = MASKED.replace(
    "            u = load",
    "            h = constant(100, 'int64')\n            k = lt(i, h)\n            u = load",
).replace(
    "            c = where(n, v, w)",
    "            c0 = where(n, v, w)\n            c = where(b, c0, u)",
)


def test_masked_loads_stay_in_bounds(harness_any):
    for axis in ("'p1'", "'p0'"):
        for dtype, other in (
            ("float32", "-1.5"),
            ("int64", "7"),
            ("bfloat16", "0.5"),
            ("bool", "True"),
            ("int8", "-3"),
            ("float64", "inf"),
            ("int16", "9"),
        ):
            kind = getattr(torch, dtype)
            data = (torch.arange(100) % 3 == 0) if dtype == "bool" else torch.arange(100).to(kind)
            harness_any.add(
                MASKED.format(axis=axis, d=dtype, other=other),
                data,
                torch.zeros(910, dtype=kind),
                label=f"{axis} {dtype}",
            )
    harness_any.compare()


GATHER = """
@kernel(device='cpu', vector='{axis}')
def kernel0(in0: In('{i}', 50), in1: In('float32', 20*33), out0: Out('float32', 50*33)):
    for p0 in range(50):
        for p1 in range(33):
            v0 = load(in0, [p0], '{i}')
            t = indirect(v0, 20)
            v1 = load(in1, [33*t + p1], 'float32')
            store(out0, [33*p0 + p1], v1)
"""


@pytest.mark.parametrize("axis", ["p1", "p0"])
def test_indirect_loads_and_their_bounds(harness_any, axis):
    for dtype in (torch.int64, torch.int32, torch.uint8):
        index = torch.randint(0, 20, (50,)).to(dtype)
        name = str(dtype).removeprefix("torch.")
        harness_any.add(
            GATHER.format(axis=axis, i=name), index, torch.randn(660), torch.zeros(1650)
        )
    launches = harness_any.build(*(case.kernel for case in harness_any.cases))
    harness_any.compare()
    for bad in (-1, 20, 1 << 40):
        for place in (0, 49):
            index = torch.zeros(50, dtype=torch.int64)
            index[place] = bad
            with pytest.raises(IndexError, match="kernel0"):
                launches[0](index, torch.randn(660), torch.zeros(1650))


def test_indirect_in_scalar_kernels_and_inside_reductions(harness):
    text = """
@kernel(device='cpu', vector={axis})
def kernel0(in0: In('int64', 6*10), in1: In('float32', 30*40), out0: Out('float32', 6*40)):
    for p0 in range(6):
        for p1 in range(40):
            for r0 in reduce(10):
                v0 = load(in0, [10*p0 + r0], 'int64')
                t = indirect(v0, 30)
                v1 = load(in1, [40*t + p1], 'float32')
                v2 = reduce('sum', v1, 'float32')
            store(out0, [40*p0 + p1], v2)
"""
    index, table = torch.randint(0, 30, (60,)), torch.randn(1200)
    for axis in ("'p1'", "'r0'", "'p0'"):
        harness.add(
            text.format(axis=axis), index, table, torch.zeros(240), label=axis, rtol=1e-5, atol=1e-5
        )
    harness.add(
        text.replace(", vector={axis}", ""),
        index,
        table,
        torch.zeros(240),
        label="scalar",
        rtol=1e-5,
        atol=1e-5,
    )
    harness.compare()


ADD = """
@kernel(device='cpu', vector='{axis}')
def kernel0(in0: In('int64', {n}), in1: In('{d}', {n}*24), out0: InOut('{d}', 10*24)):
    for p0 in range({n}):
        for p1 in range(24):
            v0 = load(in0, [p0], 'int64')
            t = indirect(v0, 10)
            v1 = load(in1, [24*p0 + p1], '{d}')
            store(out0, [24*t + p1], v1, mode='add')
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_added_stores_keep_every_contribution(harness, threads):
    before = torch.get_num_threads()
    for n in (5, 4000):
        for axis in ("p1", "p0"):
            for dtype in ("float32", "float64", "int64", "int32", "uint8"):
                kind = getattr(torch, dtype)
                tensors = [
                    torch.randint(0, 10, (n,)),
                    torch.randint(0, 9, (n * 24,)).to(kind),
                    torch.ones(240, dtype=kind),
                ]
                harness.add(
                    ADD.format(axis=axis, d=dtype, n=n), *tensors, label=f"{axis} {dtype} {n}"
                )
    try:
        torch.set_num_threads(threads)
        harness.compare()
    finally:
        torch.set_num_threads(before)


def test_add_to_one_place_from_all_lanes(harness):
    text = """
@kernel(device='cpu', vector='p0')
def kernel0(in0: In('float32', 100), out0: InOut('float32', 1)):
    for p0 in range(100):
        v0 = load(in0, [p0], 'float32')
        store(out0, [0], v0, mode='add')
"""
    harness.add(text, FLOAT[:100], torch.ones(1))
    harness.compare()


INPLACE = """
@kernel(device='cpu', vector='{axis}')
def kernel0(in0: InOut('float32', 30*50), out0: Out('float32', 30*50)):
    for p0 in range(30):
        for r0 in reduce(50):
            v0 = load(in0, [50*p0 + r0], 'float32')
            v1 = reduce('max', v0, 'float32')
            v2 = sub(v0, v0)
            v3 = add(v2, v2)
            store(out0, [50*p0 + r0], v3)
        for r0 in reduce(50):
            v4 = load(in0, [50*p0 + r0], 'float32')
            v5 = div(v4, v1)
            store(in0, [50*p0 + r0], v5)
            v6 = load(in0, [50*p0 + r0], 'float32')
            v7 = load(out0, [50*p0 + r0], 'float32')
            v8 = add(v6, v7)
            store(out0, [50*p0 + r0], v8)
"""


def test_reads_see_what_the_point_stored(harness_any):
    for axis in ("r0", "p0"):
        harness_any.add(
            INPLACE.format(axis=axis).replace(
                "    for p0 in range(30):\n        for r0 in reduce(50):\n            v0",
                "    for p0 in range(30):\n        for r0 in reduce(50):\n            v0",
            ),
            torch.rand(1500) + 0.5,
            torch.zeros(1500),
            label=axis,
        )
    harness_any.compare()


def test_symbolic_sizes_and_empty_ranges(harness_any):
    text = """
@kernel(device='cpu', vector='p1')
def kernel0(in0: In('float32', s0*s1), out0: Out('float32', s0*s1), s0: Size(hint=4), s1: Size(hint=100)):
    for p0 in range(s0):
        for p1 in range(s1):
            v0 = load(in0, [s1*p0 + p1], 'float32')
            v1 = index_expr(p0 + s1*2, 'float32')
            v2 = add(v0, v1)
            store(out0, [s1*p0 + p1], v2)
"""
    for s0, s1 in ((1, 1), (3, 16), (4, 100), (0, 5), (5, 0), (2, 9000), (100, 3)):
        harness_any.add(
            text, torch.randn(s0 * s1), torch.zeros(s0 * s1), sizes=[s0, s1], label=f"{s0}x{s1}"
        )
    harness_any.compare()


def test_zero_dimensional_kernel(harness):
    text = """
@kernel(device='cpu')
def kernel0(in0: In('float32', 1), out0: Out('float32', 1)):
    v0 = load(in0, [0], 'float32')
    v1 = exp(v0)
    store(out0, [0], v1)
"""
    harness.add(text, torch.tensor([1.5]), torch.zeros(1))
    harness.compare()


def test_names_that_hide_nothing(harness):
    text = """
@kernel(device='cpu', vector='i8')
def load(first: In('float32', 60*n), int: Out('float32', 60*n), n: Size(hint=4)):
    for W in range(n):
        for i8 in range(60):
            exp_of = load(first, [60*W + i8], 'float32')
            lanes = exp(exp_of)
            store(int, [60*W + i8], lanes)
"""
    parse_kernel(text)
    harness.add(text, torch.randn(240), torch.zeros(240), sizes=[4])
    harness.compare()


def test_mixed_dtypes_in_one_kernel(harness_any):
    text = """
@kernel(device='cpu', vector='p0')
def kernel0(in0: In('float32', 203), in1: In('int64', 203), in2: In('bool', 203), in3: In('float64', 203), in4: In('int8', 203), in5: In('bfloat16', 203), out0: Out('float64', 203), out1: Out('bfloat16', 203), out2: Out('bool', 203), out3: Out('int64', 203)):
    for p0 in range(203):
        a = load(in0, [p0], 'float32')
        b = load(in1, [p0], 'int64')
        m = load(in2, [p0], 'bool')
        d = load(in3, [p0], 'float64')
        e = load(in4, [p0], 'int8')
        h = load(in5, [p0], 'bfloat16')
        hf = cast(h, 'float32')
        bf = cast(b, 'float32')
        s = add(a, bf)
        t = where(m, s, hf)
        td = cast(t, 'float64')
        u = mul(td, d)
        e64 = cast(e, 'int64')
        k = add(b, e64)
        q = lt(b, e64)
        r = xor(q, m)
        th = cast(t, 'bfloat16')
        mi = cast(r, 'int64')
        ki = add(k, mi)
        store(out0, [p0], u)
        store(out1, [p0], th)
        store(out2, [p0], r)
        store(out3, [p0], ki)
"""
    n = 203
    inputs = [
        torch.randn(n),
        torch.randint(-99, 99, (n,)),
        torch.rand(n) < 0.5,
        torch.randn(n).double(),
        torch.randint(-99, 99, (n,)).to(torch.int8),
        torch.randn(n).bfloat16(),
    ]
    outputs = [
        torch.zeros(n, dtype=torch.float64),
        torch.zeros(n, dtype=torch.bfloat16),
        torch.zeros(n, dtype=torch.bool),
        torch.zeros(n, dtype=torch.int64),
    ]
    harness_any.add(text, *inputs, *outputs)
    harness_any.compare()
