"""Inputs in one storage of which some are written: as they are where they are apart, as views of
one base where not.
"""

from __future__ import annotations

import pytest
import torch
from aotgrad import FallbackWarning, aot_function, counters, run_eager
from aotgrad.testing import check_against_eager
from aotgrad.tracing.disjoint_guards import guard_disjoint
from aotgrad.tracing.memory_overlap import overlap
from hypothesis import assume, given
from hypothesis import strategies as st
from symshapes import FakeTensorMode, ShapeEnv, expr_of

F64 = torch.float64


@st.composite
def strided(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=3))
    strides = [draw(st.integers(0, 9)) for _ in sizes]
    return tuple(sizes), tuple(strides), draw(st.integers(0, 20))


@given(strided(), strided())
def test_overlap_is_exact(a, b):
    base = torch.zeros(200)
    x, y = (base.as_strided(*geometry) for geometry in (a, b))
    x.detach().fill_(1)
    assert overlap(x, y) == bool(y.any())


def test_overlap_counts_bytes_of_other_dtypes():
    base = torch.zeros(8, dtype=torch.float32)
    halves = base.view(torch.float64)
    assert overlap(base[2:3], halves[1:2]) and not overlap(base[4:], halves[:2])
    assert not overlap(base, torch.zeros(8)) and not overlap(base[:0], base)


def write_one(x, y, w):
    x.add_(1)
    return (x * y).sum(0) * w


def write_both(x, y, w):
    x.mul_(2)
    y.copy_(x)
    return x * w + y


def return_views(x, y, w):
    x.mul_(2)
    return y[0], x, y * w


SLICES = {
    "rows": lambda base: (base[:2], base[2:4]),
    "columns": lambda base: (base[:2, :3], base[:2, 3:]),
    "every other": lambda base: (base[::2], base[1::2]),
    "flat": lambda base: (base.view(-1)[:12].view(2, 6), base.view(-1)[12:].view(2, 6)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("f", [write_one, write_both, return_views], ids=lambda f: f.__name__)
def test_slices_that_are_apart_stay_compiled(f, slices, grad):
    def make():
        base = torch.randn(4, 6, dtype=F64)
        x, y = SLICES[slices](base)
        return x, y, torch.randn(x.shape[1], dtype=F64, requires_grad=grad)

    counters.clear()
    check_against_eager(f, make, compiled=aot_function(f, forward_compiler=run_eager))
    assert not counters or (f is return_views and grad)


def write_without_history(x, y, w):
    with torch.no_grad():
        x.add_(1)
    y.detach().mul_(2)
    return x.sum() + y.mean() * w, y


def write_twice(x, y, w):
    first = x + y.sum()
    y.mul_(3)
    x[..., 0] = y.reshape(-1)[-1]
    return first * w.sum(), x[..., 1:], y


def change_sizes(x, y, w):
    x.unsqueeze_(0)
    y.mul_(2)
    return x + w.sum()


OVERLAPPING = {
    "rows": lambda base: (base[:2], base[1:3]),
    "whole": lambda base: (base, base[1]),
    "transposed": lambda base: (base.t(), base),
    "row and column": lambda base: (base[1], base[:, 2]),
    "steps": lambda base: (base[::2, 1:], base[:3, ::3]),
    "detached": lambda base: (base[:3], base.detach()[1:]),
    "three dims": lambda base: (base.view(2, 2, 6)[:, 1, None], base.view(-1)[8:20]),
}
HISTORIES = {
    "none": lambda t: t,
    "leaf": lambda t: t.requires_grad_(),
    "result": lambda t: t.requires_grad_() * 1,
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("slices", OVERLAPPING)
@pytest.mark.parametrize(
    "f", [write_one, write_both, return_views, write_without_history, write_twice, change_sizes]
)
def test_slices_that_overlap_are_views_of_one_base(f, slices, history):
    def make():
        base = HISTORIES[history](torch.randn(4, 6, dtype=F64))
        return *OVERLAPPING[slices](base), torch.randn(6, dtype=F64, requires_grad=True)

    try:
        f(*make())
    except RuntimeError:
        pytest.skip("eager refuses")
    counters.clear()
    check_against_eager(f, make, compiled=aot_function(f, forward_compiler=run_eager), calls=2)
    assert not counters or (f is change_sizes and history == "result")


def test_each_layout_is_compiled_once():
    graphs = []
    call = aot_function(write_one, forward_compiler=lambda gm, _: graphs.append(gm) or gm.forward)
    for first in (0, 1, 0, 1):
        base, w = torch.ones(12), torch.ones(2)
        assert call(base[first : first + 4].view(2, 2), base[4:8].view(2, 2), w).shape == (2,)
    assert len(graphs) == 2  # apart, and overlapping by one


def test_gradients_of_gradients_of_slices_that_overlap():
    def f(x, y, w):
        x.mul_(2)
        y.add_(x.sum())
        return (y * w * w.sum()).sum()

    found = []
    for call in (f, aot_function(f, forward_compiler=run_eager)):
        base, w = torch.arange(6.0), torch.ones(4, requires_grad=True)
        (g,) = torch.autograd.grad(call(base[:4], base[2:], w), w, create_graph=True)
        found.append((g, *torch.autograd.grad(g.square().sum(), w)))
    torch.testing.assert_close(*found)


def test_windows_and_other_versions_run_eagerly():
    def f(x, y):
        x.add_(1)
        return y * 2

    base = torch.arange(8.0)
    for x, y in (
        (base, base.data),
        (base, base.as_strided((3, 4), (2, 1))),
        (base[:4], base.view(torch.int32)),
    ):
        counters.clear()
        with pytest.warns(FallbackWarning):
            assert torch.equal(aot_function(f, forward_compiler=run_eager)(x, y), y * 2)
        assert counters["inputs that are written share memory"] == 1


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
@pytest.mark.parametrize("slices", SLICES)
def test_slices_with_one_history(slices):
    def make():
        base = torch.randn(4, 6, dtype=F64, requires_grad=True) * 1
        x, y = SLICES[slices](base)
        return x, y, torch.randn(x.shape[1], dtype=F64)

    for f in (write_one, write_both, return_views):
        check_against_eager(f, make, compiled=aot_function(f, forward_compiler=run_eager))


BOUNDS = st.sampled_from([None, 0, 1, 2, 3, -3, -2, -1])
PARTS = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([None, 2]))
SIZES = st.tuples(st.integers(2, 7), st.integers(2, 7))


@given(SIZES, PARTS, PARTS, PARTS, PARTS, st.booleans(), SIZES)
def test_disjoint_parts_are_disjoint_where_the_guards_hold(
    sizes, rows, columns, other_rows, other_columns, turned, later
):
    def parts(t):
        t = t.t() if turned else t
        return t[rows, columns], t[other_rows, other_columns]

    env = ShapeEnv()
    symbols = [env.create_symbol(n, name) for n, name in zip(sizes, "rc")]
    values = {expr_of(s): n for s, n in zip(symbols, later)}
    with FakeTensorMode(shape_env=env), torch.no_grad():
        a, b = parts(torch.zeros(*symbols))
        assume(not overlap(a, b))
        guard_disjoint(a, b)
    if not env.failing_guards(values):
        assert not overlap(*parts(torch.zeros(later)))


def test_columns_are_disjoint_whatever_the_rows():
    env = ShapeEnv()
    rows = env.create_symbol(5, "r")
    with FakeTensorMode(shape_env=env):
        x = torch.zeros(rows, 4)
        for a, b in (
            (x[:, :2], x[:, 2:]),
            (x[:, ::2], x[:, 1::2]),
            (x[1:, :2], x[:-1, 2:]),
            (x[0], x[1]),
        ):
            guard_disjoint(a, b)
    assert not env.failing_guards({expr_of(rows): 9})
