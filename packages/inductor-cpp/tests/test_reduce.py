"""Reductions and scans over rows, columns and scalars, with every kind, dtype and many sizes."""

from __future__ import annotations

import math

import pytest
import torch
from inductor_cpp import kernel_text
from loopir import parse_kernel

SIZES = [0, 1, 7, 16, 17, 1000]
KINDS = {
    "sum": ["float32", "float64", "int32", "bool"],
    "prod": ["float32", "int64"],
    "max": ["float32", "int64", "int8"],
    "min": ["float64", "uint8"],
    "argmax": ["float32", "int64"],
    "argmin": ["float64", "uint8"],
    "any": ["bool"],
    "all": ["bool"],
}
LAYOUTS = {
    "row": ("2", "{n}*p0 + r0", "r0"),
    "column": ("37", "37*r0 + p0", "p0"),
    "scalar": ("3", "{n}*p0 + r0", None),
}


def result_dtype(kind: str, dtype: str) -> str:
    """The dtype of a reduction in these tests."""
    if kind.startswith("arg") or (kind in ("sum", "prod") and dtype in ("int32", "bool")):
        return "int64"
    return dtype


def reduction_text(kind: str, dtype: str, layout: str, n: int, *, dynamic: bool = False) -> str:
    """A kernel that reduces one axis of a matrix."""
    points, index, axis = LAYOUTS[layout]
    extent, size = ("s0", ", s0: Size(hint=64)") if dynamic else (str(n), "")
    out, vector = result_dtype(kind, dtype), f", vector={axis!r}" if axis else ""
    total = f"{points}*{extent}" if dynamic else str(int(points) * n)
    return f"""
@kernel(device='cpu'{vector})
def kernel0(in0: In('{dtype}', {total}), out0: Out('{out}', {points}){size}):
    for p0 in range({points}):
        for r0 in reduce({extent}):
            v0 = load(in0, [{index.format(n=extent)}], '{dtype}')
            v1 = reduce('{kind}', v0, '{out}')
        store(out0, [p0], v1)
"""


def values(dtype: str, count: int, kind: str, *, nans: bool) -> torch.Tensor:
    """Data for which the reduction is well conditioned; ties and, if asked, NaN and infinities."""
    random = torch.Generator().manual_seed(count)
    kind_dtype = getattr(torch, dtype)
    if kind_dtype is torch.bool:
        return torch.rand(count, generator=random) < (
            0.95 if kind == "all" else 0.02 if kind == "any" else 0.5
        )
    if not kind_dtype.is_floating_point:
        return torch.randint(0 if dtype == "uint8" else -50, 50, (count,), generator=random).to(
            kind_dtype
        )
    data = torch.randn(count, generator=random, dtype=torch.float64)
    data = (
        1 + data * 0.01
        if kind == "prod"
        else data.mul(4).round() / 4
        if kind.startswith("arg")
        else data
    )
    if nans and count > 5:
        data[count // 2] = math.nan
        data[3] = -math.inf
    return data.to(kind_dtype)


def empty_allowed(kind: str, n: int) -> bool:
    return n > 0 or not kind.startswith("arg")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reductions_equal_evaluator(harness, layout):
    for kind, dtypes in KINDS.items():
        for dtype in dtypes:
            for n in filter(lambda n: empty_allowed(kind, n), SIZES):
                points = int(LAYOUTS[layout][0])
                out = torch.zeros(points, dtype=getattr(torch, result_dtype(kind, dtype)))
                special = kind in ("max", "min", "argmax", "argmin")
                data = values(dtype, points * n, kind, nans=special and n > 7)
                label = f"{kind} {dtype} {layout} {n}"
                harness.add(
                    reduction_text(kind, dtype, layout, n),
                    data,
                    out,
                    label=label,
                    rtol=1e-5,
                    atol=1e-5 * math.sqrt(n),
                )
    harness.compare()


def test_reductions_on_every_instruction_set(harness_any):
    for kind, dtypes in KINDS.items():
        for layout in LAYOUTS:
            points = int(LAYOUTS[layout][0])
            out = torch.zeros(points, dtype=getattr(torch, result_dtype(kind, dtypes[0])))
            data = values(
                dtypes[0], points * 67, kind, nans=kind in ("max", "min", "argmax", "argmin")
            )
            harness_any.add(
                reduction_text(kind, dtypes[0], layout, 67),
                data,
                out,
                label=f"{kind} {layout}",
                rtol=1e-5,
                atol=1e-5,
            )
    harness_any.compare()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_symbolic_extents(harness, layout):
    points = int(LAYOUTS[layout][0])
    for kind in ("sum", "max", "argmax"):
        for n in (1, 5, 40, 5000):
            out = torch.zeros(points, dtype=torch.int64 if kind == "argmax" else torch.float32)
            data = values("float32", points * n, kind, nans=False)
            harness.add(
                reduction_text(kind, "float32", layout, n, dynamic=True),
                data,
                out,
                sizes=[n],
                rtol=1e-5,
                atol=1e-4,
            )
    harness.compare()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sums_stay_as_accurate_as_eager(harness, layout):
    n, points = 300_000, int(LAYOUTS[layout][0])
    data = torch.rand(points * n, generator=torch.Generator().manual_seed(0))
    exact = (
        data.double().view(points, n).sum(1)
        if layout != "column"
        else data.double().view(n, points).sum(0)
    )
    eager = data.view(points, n).sum(1) if layout != "column" else data.view(n, points).sum(0)
    from loopir import parse_kernel

    for dynamic in (False, True):
        (launch,) = harness.build(
            parse_kernel(reduction_text("sum", "float32", layout, n, dynamic=dynamic))
        )
        out = torch.zeros(points)
        launch(data, out, *([n] if dynamic else []))
        bound = (
            2 * (eager.double() - exact).abs().max()
            + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
        )
        assert (out.double() - exact).abs().max() <= bound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float64_sums_are_rounded_once(harness, layout):
    from loopir import parse_kernel

    n, points = 1000, int(LAYOUTS[layout][0])
    terms = torch.tensor([1e16, 3.0, -1e16, 1.25]).double().repeat(n // 4)
    data = terms.repeat(points) if layout != "column" else terms.repeat_interleave(points)
    (launch,) = harness.build(parse_kernel(reduction_text("sum", "float64", layout, n)))
    out = torch.zeros(points, dtype=torch.float64)
    launch(data, out)
    assert (out == 4.25 * n / 4).all()


def test_reduction_over_two_axes_with_epilogue(harness):
    text = """
@kernel(device='cpu', vector='r1')
def kernel0(in0: In('float32', 4*7*5*9), out0: Out('float32', 7), out1: Out('int64', 7)):
    for p0 in range(7):
        for r0 in reduce(4):
            for r1 in reduce(45):
                v0 = load(in0, [315*r0 + 45*p0 + r1], 'float32')
                v1 = mul(v0, v0)
                v2 = reduce('sum', v1, 'float32')
                v3 = reduce('argmin', v0, 'int64')
        c = constant(180.0, 'float32')
        v4 = div(v2, c)
        v5 = sqrt(v4)
        store(out0, [p0], v5)
        store(out1, [p0], v3)
"""
    for axis in ("r1", "r0", "p0"):
        harness.add(
            text.replace("vector='r1'", f"vector='{axis}'"),
            torch.randn(1260),
            torch.zeros(7),
            torch.zeros(7, dtype=torch.int64),
            label=axis,
        )
    harness.compare()


def test_reduction_of_a_value_without_the_axis(harness):
    text = """
@kernel(device='cpu', vector='r0')
def kernel0(in0: In('float32', 5), out0: Out('float32', 5), out1: Out('float32', 5)):
    for p0 in range(5):
        for r0 in reduce({n}):
            v0 = load(in0, [p0], 'float32')
            v1 = reduce('sum', v0, 'float32')
            v2 = reduce('max', v0, 'float32')
        store(out0, [p0], v1)
        store(out1, [p0], v2)
"""
    for n in (0, 1, 33):
        harness.add(text.format(n=n), torch.randn(5), torch.zeros(5), torch.zeros(5), label=str(n))
    harness.compare()


def test_empty_reduction_does_not_touch_its_operand(harness):
    text = """
@kernel(device='cpu', vector='r0')
def kernel0(in0: In('float32', 5*s0), out0: Out('float32', 5), s0: Size(hint=4)):
    for p0 in range(5):
        for r0 in reduce(s0):
            v0 = load(in0, [p0], 'float32')
            v1 = reduce('sum', v0, 'float32')
        store(out0, [p0], v1)
"""
    harness.add(text, torch.zeros(0), torch.ones(5), sizes=[0])
    harness.compare()


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_scans_equal_evaluator(harness_any, kind):
    for dtype in ("float32", "float64", "int64", "int32"):
        for axis, index in (("r0", "{n}*p0 + r0"), ("p0", "21*r0 + p0"), (None, "{n}*p0 + r0")):
            for n in (1, 16, 33, 200):
                vector = f", vector={axis!r}" if axis else ""
                text = f"""
@kernel(device='cpu'{vector})
def kernel0(in0: In('{dtype}', {21 * n}), out0: Out('{dtype}', {21 * n})):
    for p0 in range(21):
        for r0 in reduce({n}):
            v0 = load(in0, [{index.format(n=n)}], '{dtype}')
            v1 = scan('{kind}', v0)
            v2 = add(v1, v0)
            store(out0, [{index.format(n=n)}], v2)
"""
                data = values(dtype, 21 * n, kind, nans=False)
                harness_any.add(
                    text,
                    data,
                    torch.zeros_like(data),
                    label=f"{kind} {dtype} {axis} {n}",
                    rtol=1e-5,
                    atol=1e-4,
                )
    harness_any.compare()


@pytest.mark.parametrize(
    ("count", "accumulator"),
    [(16, "fold<"), (17, ", false>"), (256, ", false>"), (257, "cascade<")],
)
def test_long_sums_have_deeper_accumulators(count, accumulator):
    text = kernel_text(parse_kernel(reduction_text("sum", "float32", "scalar", count)))
    kinds = [kind for kind in ("fold<", ", false>", "cascade<") if kind in text]
    assert kinds[0] == accumulator
