import itertools

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from loopir import FloorDiv, Mod, Range, symbol
from loopir.evaluate import evaluate_expr
from loopir.lowering.reshape import match_dims, reshaped_strides, source_index
from loopir.node import contiguous_strides
from loopir.schedule.align import refine
from loopir.simplify import Facts, linear_parts

x, y, s = symbol("x0"), symbol("x1"), symbol("s0")


def facts():
    return Facts(lower={s: 2}, hints={s: 8})


def test_divisions_of_flat_indices_vanish():
    extents = {x: s, y: sympy.Integer(64)}
    flat = 64 * x + y
    assert facts().simplify(FloorDiv(flat, 64), extents) == x
    assert facts().simplify(Mod(flat, 64), extents) == y
    assert facts().simplify(FloorDiv(flat, 128), extents) == FloorDiv(x, 2)
    assert facts().simplify(Mod(flat, 128), extents) == 64 * Mod(x, 2) + y
    assert facts().simplify(FloorDiv(s * y + x, s), extents) == y
    assert facts().simplify(Mod(s * y + x, s), extents) == x


def test_quotient_and_remainder_join():
    assert facts().simplify(12 * FloorDiv(x, 4) + 3 * Mod(x, 4), {x: s}) == 3 * x


def test_unknown_bounds_are_left_alone():
    assert facts().simplify(FloorDiv(x, 4), {x: s}) == FloorDiv(x, 4)
    assert not facts().is_nonnegative(s - 3) and facts().is_nonnegative(s - 2)


def test_linear_parts():
    assert linear_parts(s * x + 3 * y + 7, (x, y)) == ({x: s, y: 3}, 7)
    assert linear_parts(x * y, (x, y)) is None and linear_parts(FloorDiv(x, 2), (x,)) is None


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(sizes, st.randoms())
def test_simplified_reshape_index_is_right(source, random):
    total = 1
    for size in source:
        total *= size
    target, rest = [], total
    while rest > 1:
        factor = random.choice([d for d in range(2, rest + 1) if rest % d == 0])
        target.append(factor)
        rest //= factor
    target = [*target, 1]
    symbols = [symbol(f"x{i}") for i in range(len(target))]
    extents = dict(zip(symbols, map(sympy.Integer, target), strict=True))
    shape = tuple(map(sympy.Integer, source))
    index = source_index(shape, tuple(map(sympy.Integer, target)), symbols)
    flat = sympy.Add(*(i * st for i, st in zip(index, contiguous_strides(shape), strict=True)))
    simple = Facts().simplify(flat, extents)
    for position, point in enumerate(itertools.product(*map(range, target))):
        values = {symbol.name: value for symbol, value in zip(symbols, point, strict=True)}
        assert evaluate_expr(simple, values) == evaluate_expr(flat, values) == position


def test_symbolic_dims_match():
    shape = (s, sympy.Integer(4), sympy.Integer(6))
    assert match_dims(shape, (4 * s, sympy.Integer(6))) == [([0, 1], [0]), ([2], [1])]
    assert match_dims(shape, (s, sympy.Integer(24))) == [([0], [0]), ([1, 2], [1])]
    strides = contiguous_strides(shape)
    assert reshaped_strides(shape, strides, (4 * s, sympy.Integer(6))) == (6, 1)
    assert reshaped_strides(shape, (strides[1], strides[0], 1), (4 * s, sympy.Integer(6))) is None


def test_refinement_composes_both_nests():
    a = [Range(x, 4 * s), Range(y, sympy.Integer(6))]
    b = [Range(x, s), Range(y, sympy.Integer(24))]
    found = refine(a, b, ())
    assert [item.extent for item, _ in found.loops] == [s, 4, 6]
    parts = [item.symbol for item, _ in found.loops]
    assert found.left == {x: 4 * parts[0] + parts[1], y: parts[2]}
    assert found.right == {x: parts[0], y: 6 * parts[1] + parts[2]}
    assert refine(a, [Range(x, sympy.Integer(5))], ()) is None


@pytest.mark.parametrize("text", ["x0 // 0", "x0 % 0"])
def test_division_by_zero_is_kept(text):
    from loopir import parse_expr

    assert parse_expr(text).free_symbols == {x}
