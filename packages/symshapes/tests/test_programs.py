"""Random tensor programs: fakes give eager's sizes, strides and dtypes, at every size that the
guards admit.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from symshapes import FakeTensorMode, ShapeEnv
from symshapes.testing import describe
from symshapes.testing.strategies import Step, programs, run_program

SIDES = st.tuples(st.integers(2, 6), st.integers(2, 6))


def inputs(m: int, n: int) -> list[torch.Tensor]:
    return [
        torch.randn(m, n),
        torch.randn(n, m).t(),
        torch.randn(n),
        torch.randn(m, 1),
        torch.randn(()),
        torch.randn(2, n, m),
    ]


@given(programs(), SIDES)
def test_static_program(steps: list[Step], sides: tuple[int, int]) -> None:
    real = inputs(*sides)
    expected, ran = run_program(steps, real, lenient=True)
    mode = FakeTensorMode()
    with mode:
        found, _ = run_program(ran, [mode.from_real(t) for t in real])
    assert describe(found) == describe(expected)
    assert not mode.shape_env.guards


@given(programs(), SIDES, SIDES)
def test_symbolic_program(
    steps: list[Step], sides: tuple[int, int], others: tuple[int, int]
) -> None:
    real = inputs(*sides)
    expected, ran = run_program(steps, real, lenient=True)
    env = ShapeEnv()
    mode = FakeTensorMode(env)
    fakes = [mode.from_real(t, source=str(i), dynamic_dims="auto") for i, t in enumerate(real)]
    with mode:
        found, _ = run_program(ran, fakes)
    assert describe(found, dict(env.hints)) == describe(expected)

    new = inputs(*others)
    values = {}
    for fake, t in zip(fakes, new):
        for symbol, size in zip(fake.shape, t.shape):
            if not isinstance(symbol, int):
                values[symbol.node._expr] = size
    if not env.failing_guards(values):
        again, _ = run_program(ran, new)
        assert describe(found, values) == describe(again)


def test_number_operand_keeps_strides_of_size_one_dimensions() -> None:
    steps = [
        Step("tail", 1, 0, 1),
        Step("mul_float", 6, 0, 0),
        Step("relu", 6, 0, 0),
        Step("add", 6, 6, 0),
    ]
    real = inputs(2, 2)
    expected, _ = run_program(steps, real)
    mode = FakeTensorMode()
    found, _ = run_program(steps, [mode.from_real(t, dynamic_dims="auto") for t in real])
    assert describe(found, dict(mode.shape_env.hints)) == describe(expected)
