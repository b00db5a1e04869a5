"""Random programs of views and in-place ops behave as in eager."""

from __future__ import annotations

import torch
from aotgrad import aot_function, run_eager
from aotgrad.testing import check_against_eager
from hypothesis import given
from hypothesis import strategies as st

# a program is a list of steps; each step names an operation and the values (by position, modulo)
# that it uses
UNARY = {
    "sin": lambda a: a.sin(),
    "tanh": lambda a: a.tanh(),
    "scale": lambda a: a * 1.5,
    "clone": lambda a: a.clone(),
    "detach": lambda a: a.detach(),
    "sum rows": lambda a: a.sum(0, keepdim=True).expand(a.shape),
    "softmax": lambda a: a.softmax(-1),
}
VIEWS = {
    "transpose": lambda a: a.transpose(0, -1),
    "flat": lambda a: a.reshape(-1),
    "first": lambda a: a[:1],
    "tail": lambda a: a[1:] if a.shape[0] > 1 else a,
    "every other": lambda a: a[::2],
    "unsqueeze": lambda a: a.unsqueeze(0),
    "squeeze": lambda a: a.squeeze(0),
    "as is": lambda a: a.view_as(a),
    "flip halves": lambda a: a.chunk(2)[-1],
}
WRITES = {
    "add one": lambda a: a.add_(1),
    "halve": lambda a: a.mul_(0.5),
    "zero": lambda a: a.zero_(),
    "clamp": lambda a: a.clamp_(-0.9, 0.9),
}
BINARY = {
    "add": lambda a, b: a + b.sum(),
    "multiply": lambda a, b: a * b.mean(),
}
BINARY_WRITES = {
    "add into": lambda a, b: a.add_(b.detach().mean()),
    "multiply into": lambda a, b: a.mul_(b.mean()),
    "fill with": lambda a, b: a.copy_(b.mean().expand(a.shape)),
}
TABLE = {**UNARY, **VIEWS, **WRITES, **BINARY, **BINARY_WRITES}

steps = st.lists(
    st.tuples(
        st.sampled_from(sorted(TABLE)), st.integers(0, 20), st.integers(0, 20), st.booleans()
    ),
    min_size=1,
    max_size=8,
)
results = st.lists(st.integers(0, 20), min_size=1, max_size=4)


def run(recipe, chosen, x, y):
    values = [x, y]
    for name, i, j, no_grad in recipe:
        a, b = values[i % len(values)], values[j % len(values)]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not no_grad):
            values.append(
                TABLE[name](a, b) if name in BINARY or name in BINARY_WRITES else TABLE[name](a)
            )
    return tuple(values[i % len(values)] for i in chosen)


def make_inputs(kind):
    def make():
        x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
        if kind != "plain":
            y.requires_grad_()
        if kind == "both":
            x.requires_grad_()
        return (x * 1, y * 1) if kind == "both" else (x, y)

    return make


@given(steps, results, st.sampled_from(["plain", "one", "both"]))
def test_random_programs(recipe, chosen, kind):
    def program(x, y):
        return run(recipe, chosen, x, y)

    check_random(program, make_inputs(kind))


def check_random(program, make):
    try:
        check_against_eager(program, make, compiled=program, calls=1)
    except RuntimeError:
        return  # eager refuses the program or its backward
    compiled = aot_function(program, forward_compiler=run_eager)
    refused = []

    def guarded(*inputs):
        from aotgrad import Unsupported

        try:
            return compiled(*inputs)
        except Unsupported as error:
            refused.append(error.id)
            return program(*inputs)

    check_against_eager(program, make, compiled=guarded, calls=1)
