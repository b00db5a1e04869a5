"""Soundness: simplification, bounds, static answers and guards, against Python on random values."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from symshapes import Mod, ShapeEnv, expr_of, python_text, statically_known_true
from symshapes.testing.strategies import Formula, formulas

SIZES = st.tuples(*[st.integers(2, 40)] * 3)
RELATIONS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def symbols(env: ShapeEnv, hints: tuple) -> tuple:
    return tuple(env.create_symbol(h, name) for h, name in zip(hints, "xyz"))


def values(env: ShapeEnv, sizes: tuple) -> dict[sympy.Symbol, int]:
    return dict(zip(env.hints, sizes))


@given(formulas(), SIZES, SIZES)
def test_expression_keeps_its_value(formula: Formula, hints: tuple, sizes: tuple) -> None:
    env = ShapeEnv()
    result = formula.apply(symbols(env, hints))
    assert not env.guards
    if isinstance(result, torch.SymInt):
        assert result.node.hint == formula.apply(hints)
    assert env.evaluate(expr_of(result), values(env, sizes)) == formula.apply(sizes)


@given(formulas(), SIZES, SIZES)
def test_python_text_keeps_the_value(formula: Formula, hints: tuple, sizes: tuple) -> None:
    env = ShapeEnv()
    expr = expr_of(formula.apply(symbols(env, hints)))
    text = python_text(expr, {s: f"size[{i}]" for i, s in enumerate(env.hints)})
    assert eval(text, {"size": sizes}) == formula.apply(sizes)


@given(formulas(), SIZES, SIZES)
def test_bounds_contain_every_value(formula: Formula, hints: tuple, sizes: tuple) -> None:
    env = ShapeEnv()
    low, high = env.bounds(expr_of(formula.apply(symbols(env, hints))))
    assert low <= formula.apply(sizes) <= high


@given(formulas(), formulas(), st.sampled_from(sorted(RELATIONS)), SIZES, SIZES)
def test_static_answers_are_true_everywhere(
    a: Formula, b: Formula, sign: str, hints: tuple, sizes: tuple
) -> None:
    env = ShapeEnv()
    inputs = symbols(env, hints)
    relation: Any = RELATIONS[sign](a.apply(inputs), b.apply(inputs))
    answer = env.statically_known(expr_of(relation))
    assert not env.guards
    if answer is not None:
        assert answer == RELATIONS[sign](a.apply(sizes), b.apply(sizes))


@given(
    st.lists(
        st.tuples(formulas(), formulas(), st.sampled_from(sorted(RELATIONS))),
        min_size=1,
        max_size=4,
    ),
    SIZES,
    SIZES,
)
def test_guards_imply_the_same_decisions(decisions: list, hints: tuple, sizes: tuple) -> None:
    env = ShapeEnv()
    inputs = symbols(env, hints)
    taken = [bool(RELATIONS[sign](a.apply(inputs), b.apply(inputs))) for a, b, sign in decisions]
    assert taken == [RELATIONS[sign](a.apply(hints), b.apply(hints)) for a, b, sign in decisions]
    assert not env.failing_guards(values(env, hints))
    if not env.failing_guards(values(env, sizes)):
        assert taken == [
            RELATIONS[sign](a.apply(sizes), b.apply(sizes)) for a, b, sign in decisions
        ]


@given(
    st.lists(st.tuples(formulas(), formulas(), st.sampled_from(sorted(RELATIONS))), max_size=3),
    formulas(),
    SIZES,
    SIZES,
)
def test_facts_from_guards_stay_sound(
    decisions: list, query: Formula, hints: tuple, sizes: tuple
) -> None:
    """After guards, simplification, bounds and static answers hold for all sizes that satisfy
    them.
    """
    env = ShapeEnv()
    inputs = symbols(env, hints)
    for a, b, sign in decisions:
        bool(RELATIONS[sign](a.apply(inputs), b.apply(inputs)))
    result = query.apply(inputs)
    low, high = env.bounds(expr_of(result))
    answer = statically_known_true(result > 7)
    if env.failing_guards(values(env, sizes)):
        sizes = hints
    value = query.apply(sizes)
    assert env.evaluate(expr_of(result), values(env, sizes)) == value
    assert low <= value <= high
    assert not answer or value > 7


@given(
    st.integers(-50, 50), st.integers(-9, 9).filter(bool), st.integers(-5, 5), st.integers(-5, 5)
)
def test_modulo_has_python_signs(a: int, b: int, x: int, y: int) -> None:
    s = sympy.Symbol("s", integer=True)
    for numerator, divisor in ((x * s + a, b), (a, s), (x * s + y, b)):
        divisor = sympy.sympify(divisor)
        at = divisor.xreplace({s: sympy.Integer(b)})
        value = Mod(sympy.sympify(numerator), divisor).xreplace({s: sympy.Integer(b)})
        assert value == int(sympy.sympify(numerator).xreplace({s: sympy.Integer(b)})) % int(at)
