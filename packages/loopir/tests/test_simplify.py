import itertools

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from loopir import FloorDiv, Mod, Range, symbol
from loopir.ir.evaluate import evaluate_expr
from loopir.ir.node import contiguous_strides
from loopir.ir.simplify import Facts, exact_quotient, linear_parts
from loopir.lowering.reshape import match_dims, reshaped_strides, source_index
from loopir.schedule.align import refine

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


@st.composite
def index_expressions(draw):
    """Formulas over loops, with negative parts, quotients and remainders."""
    made = st.sampled_from(
        [x, y, x + y, 4 * x + y, 6 * x + 2 * y, x - y, 3 - x, 12 * y - 4, -x, 2 * x - 5 * y + 1]
    )
    grow = {
        "add": lambda a, b, n: a + b, "sub": lambda a, b, n: a - b, "scale": lambda a, b, n: n * a,
        "div": lambda a, b, n: FloorDiv(a, sympy.Integer(n)), "mod": lambda a, b,
        n: Mod(a, sympy.Integer(n)),
    }  # fmt: skip
    expr = draw(made)
    for name in draw(st.lists(st.sampled_from(sorted(grow)), max_size=3)):
        expr = grow[name](expr, draw(made), draw(st.integers(1, 12)))
    return sympy.sympify(expr)


@given(index_expressions(), st.integers(1, 5), st.integers(1, 7))
def test_simplified_indices_and_bounds_hold_at_every_point(expr, rows, columns):
    extents = {x: sympy.Integer(rows), y: sympy.Integer(columns)}
    points = [{"x0": a, "x1": b} for a in range(rows) for b in range(columns)]
    values = [evaluate_expr(expr, point) for point in points]
    simple = Facts().simplify(expr, extents)
    assert [evaluate_expr(simple, point) for point in points] == values
    upper = Facts().upper(expr, extents)
    assert upper is None or max(values) <= evaluate_expr(sympy.sympify(upper), {})
    assert min(values) >= 0 or not Facts().is_from_zero(expr, extents)
    for limit in (1, 4, 12):
        assert (
            not Facts().is_below(expr, sympy.Integer(limit), extents)
            or 0 <= min(values) <= max(values) < limit
        )


def test_bounds_that_are_not_known():
    extents, other = {x: sympy.Integer(4)}, symbol("x7")
    assert Facts().upper(x * x - other, extents) is None or Facts().upper(3 * x + 2, extents) == 11
    assert Facts().upper(-x, extents) == 0 and Facts().upper(s - 1 + x, extents) == s + 2
    assert Facts(signed={s}).upper(s * x, extents) is None
    assert Facts().upper(FloorDiv(x, s + 1), extents) == FloorDiv(3, s + 1)  # it may be 1
    assert Facts(signed={s}).upper(s + FloorDiv(x, s), extents) is None
    assert not Facts(signed={s}).is_from_zero(s + x, extents)


@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [(6 * s, 3, 2 * s), (6, 4, None), (6, 3, 2), (s, 2, None), (s * s + s, s, s + 1), (s, 0, None),
    (5, 0, None),
     (4 * sympy.Max(s, 3), sympy.Max(s, 3), 4), (4 * sympy.Min(s, 3), 2, 2 * sympy.Min(s, 3)),
     (sympy.Max(s, 3), 2, None)],
)  # fmt: skip
def test_quotients_that_are_whole(a, b, quotient):
    assert exact_quotient(sympy.sympify(a), sympy.sympify(b)) == quotient


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
