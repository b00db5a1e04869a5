"""Random chains of movements between pointwise operations: right, and work on indices that grows as
the chain does.
"""

from __future__ import annotations

import loopir
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace

SIDES = ((16, 16), (8, 32), (4, 4, 16), (2, 8, 4, 4), (256,), (64, 4), (32, 2, 4))
MOVES = {
    "turn": lambda x: x.permute(*reversed(range(x.dim()))),
    "rotate": lambda x: x.movedim(0, -1),
    "add": lambda x: x + 1,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, -1),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 0))[..., 1:],
    "sum with itself": lambda x: x + x.flip(-1),
    "join": lambda x: torch.cat([x[1:], x[:1]]),
    "narrow and repeat": lambda x: x[:1].expand_as(x) * x,
}


def size_of(expr: sympy.Basic) -> int:
    """The nodes of an expression's tree."""
    return 1 + sum(map(size_of, expr.args))


def work_on_indices(program: loopir.Program) -> int:
    """The nodes of all index expressions, and the instructions."""
    steps = [
        step for kernel in program.kernels for body in kernel.bodies for step in body.instructions
    ]
    return len(steps) + sum(size_of(expr) for step in steps for expr in step.expressions)


def lowered(function, x) -> loopir.HostProgram:
    options = loopir.Options(check=True)
    return loopir.compile_graph(
        trace(function, x), [x], codegens={"cpu": EvaluatorCodeGenerator()}, options=options
    )


def alternating(x):
    return x.t().reshape(8, 32).permute(1, 0).reshape(16, 16) + 1


def deep(x):
    return x.reshape(2, 8, 4, 4).permute(3, 1, 0, 2).reshape(16, 16) * 2


def without_arithmetic(x):
    return x.t().reshape(4, 4, 16).movedim(0, 1).reshape(16, 16)


@pytest.mark.parametrize("step", [alternating, deep, without_arithmetic])
def test_work_grows_with_the_chain(step):
    def chain(count):
        def run(x):
            x = x.sin()
            for _ in range(count):
                x = step(x)
            return x

        return run

    x = torch.arange(256.0).reshape(16, 16)
    works = [work_on_indices(lowered(chain(count), x).program) for count in (10, 20, 40)]
    assert works[1] <= 3 * works[0]
    assert works[2] <= 3 * works[1]
    torch.testing.assert_close(lowered(chain(10), x)(x)[0], chain(10)(x))


@st.composite
def chains(draw):
    """Names of movements, and shapes to reshape to."""
    return draw(
        st.lists(
            st.one_of(st.sampled_from([*MOVES]), st.sampled_from(SIDES)), min_size=1, max_size=12
        )
    )


@given(chains())
@settings(max_examples=60)
def test_random_chains_equal_eager(steps):
    def run(x):
        x = x.sin()
        for step in steps:
            x = MOVES[step](x) if isinstance(step, str) else x.reshape(step)
        return x

    x = torch.arange(256.0).reshape(16, 16)
    host = lowered(run, x)
    torch.testing.assert_close(host(x)[0], run(x))
    assert work_on_indices(host.program) <= 1500 * len(steps)
