"""The clean-up passes: what they remove, what they must not, and that values stay."""

from __future__ import annotations

import pytest
import torch
from aotgrad import aot_function, run_eager, trace_functional
from aotgrad.effect_plan import InputSpec
from aotgrad.graphs.passes import clean
from aotgrad.running.eager import run_eager as compile_eager
from aotgrad.tracing.joint import trace_values
from hypothesis import given
from hypothesis import strategies as st
from symshapes import FakeTensorMode, ShapeEnv


def raw(f, *inputs):
    """The functional graph before any pass."""
    mode = FakeTensorMode(ShapeEnv())
    specs = [InputSpec(f"x{i}", mode.from_real(x)) for i, x in enumerate(inputs)]
    return trace_values(lambda values, *_: f(*values), specs, mode)


def operations(gm):
    return [str(n.target).removeprefix("aten.") for n in gm.graph.nodes if n.op == "call_function"]


def cleaned(f, *inputs):
    return operations(trace_functional(f, inputs))


x = torch.randn(4, 6)


def test_common_subexpressions_are_computed_once():
    assert cleaned(lambda a: a.sin() + a.sin() * a.sin(), x) == [
        "sin.default",
        "mul.Tensor",
        "add.Tensor",
    ]


def test_numbers_of_other_types_are_other_arguments():
    assert len(cleaned(lambda a: (a.add(0.0), a.add(-0.0), a.add(0)), x)) == 3


def test_random_ops_are_never_merged():
    assert cleaned(lambda a: (a.bernoulli(0.5), a.bernoulli(0.5)), x).count("bernoulli.p") == 2
    assert len(cleaned(lambda a: (torch.rand_like(a), torch.rand_like(a)), x)) == 2


def test_ops_of_unknown_effect_are_never_merged():
    library = torch.library.Library("aotgrad_test_passes", "DEF")
    library.define("count(Tensor x) -> Tensor")
    library.impl("count", lambda t: t.clone(), "CompositeExplicitAutograd")
    count = torch.ops.aotgrad_test_passes.count
    assert len(cleaned(lambda a: count(a) + count(a), x)) == 3


def test_writes_in_between_keep_reads_apart():
    def f(a):
        b = a.clone()
        first = b.sin()
        b.add_(1)
        return first + b.sin()

    assert cleaned(f, x).count("sin.default") == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a.t().t().sin(),
        lambda a: a.view(24).view(4, 6).sin(),
        lambda a: a[:].sin(),
        lambda a: a.expand(4, 6).sin(),
        lambda a: a.permute(1, 0).permute(1, 0).sin(),
        lambda a: a.unsqueeze(0).squeeze(0).sin(),
        lambda a: a.contiguous().to(torch.float32).sin(),
        lambda a: (a * 1).sin(),
        lambda a: ((a / 1 - 0) ** 1).sin(),
        lambda a: a.clone().sin(),
        lambda a: torch.stack([a, a]).unbind()[1].sin(),
    ],
)
def test_what_changes_nothing_is_removed(f):
    assert cleaned(f, x) == ["sin.default"]


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a + 0,  # -0.0 becomes 0.0
        lambda a: a * -1,
        lambda a: a.int() * 1.0,  # another dtype
        lambda a: a.t().clone(memory_format=torch.contiguous_format).sin(),  # another layout
        lambda a: a[:, 1:].sin(),
        lambda a: torch.stack([a, a], -1).unbind(-1)[0].sin(),  # another layout
        lambda a: torch.stack([a, a], -1).unbind(0)[0].sin(),
        lambda a: torch.stack([a, a]).unbind()[1],
    ],
)
def test_what_changes_something_stays(f):
    assert len(cleaned(f, x)) >= 1 + ("sin.default" in cleaned(f, x))
    torch.testing.assert_close(compile_eager(trace_functional(f, [x]), [x])(x)[0], f(x))


def test_small_constants_are_folded():
    def f(a):
        return a[:, :3] * (torch.tensor([1.0, 2.0, 3.0]) * 2 + 1).sqrt()

    gm = trace_functional(f, [x])
    assert operations(gm) == ["slice.Tensor", "mul.Tensor"]
    torch.testing.assert_close(compile_eager(gm, [x])(x)[0], f(x))


def test_equal_elements_become_full():
    assert cleaned(lambda a: a * torch.full((2,), 0.5).square().sum(), x) == [
        "full.default",
        "mul.Tensor",
    ]


def test_tensors_of_the_surroundings_are_not_folded():
    scale = torch.ones(6)
    compiled = aot_function(lambda a: a * (scale + 1), forward_compiler=run_eager)
    compiled(x)
    scale.fill_(3)
    torch.testing.assert_close(compiled(x), x * 4)


def test_dead_code_goes_and_random_ops_stay_when_asked():
    def f(a):
        a.sin()
        torch.rand_like(a)
        return a.cos()

    assert cleaned(f, x) == ["cos.default"]
    gm = raw(f, x)
    clean(gm, keep_random=True)
    assert operations(gm) == ["rand_like.default", "cos.default"]


STEPS = {
    "sin": lambda a, b: a.sin(),
    "again": lambda a, b: b.clone().sin(),
    "times one": lambda a, b: a * 1,
    "plus zero": lambda a, b: a + 0.0,
    "minus zero": lambda a, b: a - 0,
    "mix": lambda a, b: a + b,
    "transpose twice": lambda a, b: a.t().t(),
    "transposed": lambda a, b: (a.t() * 2).t(),
    "literal": lambda a, b: a * torch.tensor([2.0, -0.0, 1.0, 4.0]).neg(),
    "filled": lambda a, b: b - torch.full((4,), 2.0) * torch.ones(4),
    "slice": lambda a, b: torch.cat([a[:2], b[2:]]),
    "write": lambda a, b: a.clone().add_(b),
    "row": lambda a, b: a.clone().index_copy(0, torch.tensor([1]), b[:1]),
    "half": lambda a, b: a.double().float(),
    "stacked": lambda a, b: torch.stack([a, b]).unbind()[1],
    "flip": lambda a, b: a.flip(0),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=10,
    )
)
def test_random_graphs_keep_their_values(recipe):
    def f(a, b):
        values = [a, b]
        for name, i, j in recipe:
            values.append(STEPS[name](values[i % len(values)], values[j % len(values)]))
        return tuple(values[2:])

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    a[0, 0], b[1, 1] = -0.0, float("nan")
    gm = raw(f, a, b)
    before = compile_eager(gm, [a, b])(a, b)
    clean(gm)
    text = str(gm.graph)
    for got, wanted in zip(compile_eager(gm, [a, b])(a, b), before):
        assert torch.equal(got.nan_to_num(7), wanted.nan_to_num(7)) and torch.equal(
            got.signbit(), wanted.signbit()
        )
        assert got.stride() == wanted.stride()
    clean(gm)
    assert str(gm.graph) == text  # a second time changes nothing
