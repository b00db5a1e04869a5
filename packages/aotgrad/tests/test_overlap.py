"""Inputs in one storage: those that are apart stay compiled, those that share elements run eagerly."""

from __future__ import annotations

import pytest
import torch
from aotgrad import aot_function, counters, run_eager
from aotgrad.overlap import overlap
from aotgrad.testing import check_against_eager
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
@pytest.mark.parametrize("f", [write_one, return_views], ids=lambda f: f.__name__)
def test_slices_that_overlap_run_eagerly(f):
    def make():
        base = torch.randn(4, 6, dtype=F64)
        return base[:2], base[1:3], torch.randn(6, dtype=F64, requires_grad=True)

    counters.clear()
    check_against_eager(f, make, compiled=aot_function(f, forward_compiler=run_eager))
    assert counters["inputs that are written share memory"] == 2


@pytest.mark.filterwarnings("ignore::aotgrad.FallbackWarning")
@pytest.mark.parametrize("slices", SLICES)
def test_slices_with_one_history(slices):
    def make():
        base = torch.randn(4, 6, dtype=F64, requires_grad=True) * 1
        x, y = SLICES[slices](base)
        return x, y, torch.randn(x.shape[1], dtype=F64)

    for f in (write_one, write_both, return_views):
        check_against_eager(f, make, compiled=aot_function(f, forward_compiler=run_eager))
