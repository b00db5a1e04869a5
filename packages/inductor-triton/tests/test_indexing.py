"""Index expressions: merging of loops, bounds and text."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from inductor_triton.kernels.index_text import IndexPrinter, host_text
from inductor_triton.kernels.indexing import bounds, merge_loops, stride
from loopir import FloorDiv, Interval, Mod, parse_expr, parse_kernel, symbol

I, J, S = symbol("i"), symbol("j"), symbol("s0")


def expressions() -> st.SearchStrategy[sympy.Expr]:
    leaves = st.sampled_from([I, J, S]) | st.integers(-5, 5).map(sympy.Integer)

    def extend(inner):
        divisor = st.integers(1, 5).map(sympy.Integer)
        return (
            st.builds(lambda a, b: a + b, inner, inner)
            | st.builds(lambda a, b: a * b, inner, inner)
            | st.builds(FloorDiv, inner, divisor)
            | st.builds(Mod, inner, divisor)
            | st.builds(sympy.Min, inner, inner)
            | st.builds(sympy.Max, inner, inner)
            | st.builds(lambda a: a**2, inner)
        )

    return st.recursive(leaves, extend, max_leaves=6)


def python_value(expr: sympy.Expr, values: dict[str, int]) -> int:
    return eval(host_text(expr), {"min": min, "max": max}, values)


@given(expressions(), st.integers(0, 9), st.integers(0, 9), st.integers(2, 9))
def test_bounds_hold(expr, i, j, size):
    found = bounds(expr, {I: Interval(0, 9), J: Interval(0, 9)})
    low, high = found.lo, found.hi
    assert low <= python_value(expr, {"i": i, "j": j, "s0": size}) <= high


def test_bounds_of_powers():
    assert bounds(I**2 + 1, {I: Interval(0, 9)}) == Interval(1, 82)
    assert bounds((I - 5) ** 2, {I: Interval(0, 9)}).lo <= 0


@given(expressions(), st.integers(0, 9), st.integers(0, 9), st.integers(2, 9))
def test_triton_text_has_the_value_of_the_expression(expr, i, j, size):
    class Truncating(int):
        """An int whose // and % truncate, as Triton's do."""

        def _of(self, value):
            return Truncating(value)

        def __add__(self, other):
            return self._of(int(self) + int(other))

        def __radd__(self, other):
            return self._of(int(self) + int(other))

        def __sub__(self, other):
            return self._of(int(self) - int(other))

        def __mul__(self, other):
            return self._of(int(self) * int(other))

        def __rmul__(self, other):
            return self._of(int(self) * int(other))

        def __neg__(self):
            return self._of(-int(self))

        def __floordiv__(self, other):
            return self._of(int(int(self) / int(other)))

        def __mod__(self, other):
            return self._of(int(self) - int(int(self) / int(other))
            * int(other))  # fmt: skip

    class Language:
        minimum, maximum = staticmethod(min), staticmethod(max)

    text = IndexPrinter({I: Interval(0, 9), J: Interval(0, 9)}).show(expr)
    scope = {
        "tl": Language, "floordiv_int": lambda a, b: Truncating(int(a) // int(b)),
        "remainder_int": lambda a, b: Truncating(int(a) % int(b)),
    }  # fmt: skip
    values = {"i": Truncating(i), "j": Truncating(j), "s0": Truncating(size)}
    assert eval(text, scope, values) == python_value(expr, {"i": i, "j": j, "s0": size})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8*i + j", 8),
        ("i*s0 + 3", "s0"),
        ("(i // 2) + j", None),
        ("j", 0),
        ("i*i", None),
        ("(i + j)*s0", "s0"),
    ],
)
def test_stride(text, expected):
    wanted = parse_expr(expected) if isinstance(expected, str) else expected
    assert stride(parse_expr(text), I) == wanted


def test_loops_merge_only_where_all_accesses_are_flat():
    text = """
@kernel(device='cuda')
def copy(in0: In('float32', 24*s0), out: Out('float32', 24*s0), s0: Size(hint=5)):
    for i in range(2):
        for j in range(s0):
            for k in range(12):
                a = load(in0, [{index}], 'float32')
                store(out, [12*s0*i + 12*j + k], a)
"""
    flat = merge_loops(parse_kernel(text.format(index="12*s0*i + 12*j + k")))
    assert [str(item.extent) for item in flat.ranges] == ["24*s0"]
    partly = merge_loops(parse_kernel(text.format(index="12*s0*(1 - i) + 12*j + k")))
    assert [str(item.extent) for item in partly.ranges] == ["2", "12*s0"]
