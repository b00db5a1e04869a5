"""Captured graphs that were compiled before need no trace (torchstrata.graph_cache), and are never taken
for others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchstrata
from torch import nn
from torch.nn import functional as F

from integration_tests.models.zoo import ZOO
from integration_tests.rule import train_step


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """``compiled(f)`` compiles anew with one store; ``compiled.traces`` counts the traces since."""
    from aotgrad.graphs import trace

    traced = trace.trace_joint

    def compile_anew(f, **options):
        torchstrata.reset()
        compile_anew.traces = 0
        return torchstrata.compile(
            f, options={"cache_dir": str(tmp_path), "verify": False, "fallback": "error", **options}
        )

    def counting(*args, **kwargs):
        compile_anew.traces += 1
        return traced(*args, **kwargs)

    monkeypatch.setattr(trace, "trace_joint", counting)
    return compile_anew


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt", "dlrm"])
def test_training_again_needs_no_trace(name, compiled):
    entry = next(entry for entry in ZOO if entry.name == name)

    def step():
        torch.manual_seed(0)
        model, inputs = entry.build(), tuple(entry.inputs(3))
        call = compiled(model)
        return [train_step(call, model, inputs) for _ in range(2)]

    first, traces = step(), compiled.traces
    again = step()
    assert traces > 0 and compiled.traces == 0 and torchstrata.counters["cache_misses"] == 0
    for a, b in zip(first, again, strict=True):
        for key, value in a.items():
            torch.testing.assert_close(b[key], value, rtol=0, atol=0, msg=key)


def scaled(x, w):
    return F.gelu(x @ w).sum(1)


def leaves():
    torch.manual_seed(0)
    return torch.randn(6, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)


def test_gradients_of_gradients(compiled):
    def second(f):
        x, w = (leaf.detach().double().requires_grad_() for leaf in leaves())
        (g,) = torch.autograd.grad(f(x, w).square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [x, w])

    expected = second(scaled)
    for _ in range(2):
        torch.testing.assert_close(second(compiled(scaled)), expected)


def test_the_other_grad_mode(compiled):
    x, w = leaves()
    for _ in range(2):
        call = compiled(scaled)
        torch.testing.assert_close(call(x, w), scaled(x, w))
        with torch.no_grad():
            torch.testing.assert_close(call(x, w), scaled(x, w))


def test_writes_and_views(compiled):
    def f(x, buffer):
        buffer.add_(x * 2)
        return buffer.t(), x.exp(), buffer

    base = torch.arange(20.0)
    # apart, overlapping
    for inputs in (
        (torch.ones(3, 3), torch.ones(3, 3)),
        (base[:9].view(3, 3), base[4:13].view(3, 3)),
    ):
        outcomes = []
        for call in (f, compiled(f), compiled(f)):
            storage = base.clone()
            given = [
                storage.as_strided(x.shape, x.stride(), x.storage_offset())
                if x._base is base
                else x.clone()
                for x in inputs
            ]
            view, other, buffer = call(*given)
            assert buffer is given[1] and view._base is not None
            outcomes.append((view.clone(), other, buffer.clone(), buffer._version > 0))
        for outcome in outcomes[1:]:
            torch.testing.assert_close(outcome, outcomes[0])


def test_dropout_draws_anew(compiled):
    x = torch.ones(1000)
    for _ in range(2):
        call = compiled(lambda x: F.dropout(x, 0.5))
        assert not torch.equal(call(x), call(x))


CHANGES = {
    "sizes": lambda x, w: (x[:5].detach().requires_grad_(), w),
    "strides": lambda x, w: (x, w.detach().t().contiguous().t().requires_grad_()),
    "dtype": lambda x, w: (
        x.detach().double().requires_grad_(),
        w.detach().double().requires_grad_(),
    ),
    "requires_grad": lambda x, w: (x.detach(), w),
    "no leaf": lambda x, w: (x * 1, w),
    "parameter": lambda x, w: (x, nn.Parameter(w.detach())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_inputs_are_traced(change, compiled):
    compiled(scaled)(*leaves()).sum().backward()
    given = CHANGES[change](*leaves())
    call = compiled(scaled)
    result = call(*given)
    assert compiled.traces > 0
    torch.testing.assert_close(result, scaled(*given))


@pytest.mark.parametrize(
    "other",
    [lambda x, w: F.gelu(x @ w, approximate="tanh").sum(1), lambda x, w: F.gelu(x @ w).sum(1) * 1],
)
def test_other_programs_are_traced(other, compiled):
    compiled(scaled)(*leaves())
    torch.testing.assert_close(compiled(other)(*leaves()), other(*leaves()))
    assert compiled.traces > 0


def states():
    yield torch.autocast("cpu", torch.bfloat16)
    yield torch.no_grad()
    yield torch.inference_mode()
    yield torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


@pytest.mark.parametrize("number", range(4))
def test_other_states_of_torch_are_traced(number, compiled):
    call = compiled(scaled)
    call(*leaves())
    with list(states())[number]:
        result = compiled(scaled)(*leaves())
        expected = scaled(*leaves())
    assert (
        compiled.traces > 0
        and result.dtype == expected.dtype
        and result.requires_grad == expected.requires_grad
    )


@pytest.mark.parametrize(
    "options", [{"numerics": "eager"}, {"partition": "default"}, {"activation_memory_budget": 0.5}]
)
def test_other_settings_are_traced(options, compiled):
    compiled(scaled)(*leaves())
    compiled(scaled, **options)(*leaves())
    assert compiled.traces > 0


def test_a_pattern_is_not_passed_over(compiled):
    import aotgrad

    x = torch.tensor(2.0)
    assert compiled(lambda x: torch.sin(x) + 1)(x) == torch.sin(x) + 1
    pattern = aotgrad.register_pattern(lambda x: torch.sin(x), lambda x: torch.cos(x), inputs=[x])
    try:
        torch.testing.assert_close(compiled(lambda x: torch.sin(x) + 1)(x), torch.cos(x) + 1)
    finally:
        aotgrad.unregister_pattern(pattern.name)


def test_changed_operators_of_the_program_are_compiled_anew(compiled):
    x = torch.ones(3)
    for factor in (2.0, 3.0):
        with torch.library._scoped_library("kept_graphs", "FRAGMENT") as library:
            library.define("scale(Tensor x) -> Tensor")
            library.impl("scale", lambda x, factor=factor: x * factor, "CompositeImplicitAutograd")
            assert torch.equal(
                compiled(lambda x: torch.ops.kept_graphs.scale(x) + 1)(x), x * factor + 1
            )


def test_operators_of_torch_that_are_exchanged_are_not_kept(compiled):
    x = torch.ones(3)
    call = lambda x: torch.special.expit(x) + 1  # noqa: E731
    expected = torch.sigmoid(x) + 1
    assert torch.equal(compiled(call)(x), expected)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(
            "special_expit", lambda x: x * 5, "CompositeImplicitAutograd", allow_override=True
        )
        assert torch.equal(call(x), x * 5 + 1)
        assert torch.equal(compiled(call)(x), x * 5 + 1)
    assert torch.equal(compiled(call)(x), expected)


def test_functions_put_in_torchs_place_are_not_kept(compiled, monkeypatch):
    x = torch.ones(3)
    call = lambda x: torch.nn.functional.relu6(x) + 1  # noqa: E731
    assert torch.equal(compiled(call)(x), x + 1)
    monkeypatch.setattr(torch.nn.functional, "relu6", lambda x: x * 5)
    assert torch.equal(compiled(call)(x), x * 5 + 1)


def test_a_torn_entry_is_a_miss(compiled, tmp_path):
    for damage in (None, b"", b"something else"):
        if damage is not None:
            for path in tmp_path.rglob("*.graph"):
                path.write_bytes(damage)
        torch.testing.assert_close(compiled(scaled)(*leaves()), scaled(*leaves()))
        assert compiled.traces > 0
    compiled(scaled)(*leaves())
    assert compiled.traces == 0


def test_an_entry_whose_programs_are_gone_is_a_miss(compiled, tmp_path):
    compiled(scaled)(*leaves())
    for path in tmp_path.rglob("*.program"):
        path.unlink()
    torch.testing.assert_close(compiled(scaled)(*leaves()), scaled(*leaves()))
    assert compiled.traces > 0


SOURCE = """import torch
{above}
def f(x, w):
    return torch.tanh(x @ w).sum(1) * 2
"""


def test_a_file_that_moves_or_gets_lines_above_needs_no_trace(compiled, tmp_path):
    for folder, above in (("first", ""), ("second", "# a comment"), ("third", "\n\n")):
        path = tmp_path / folder / "model.py"
        path.parent.mkdir()
        path.write_text(SOURCE.format(above=above))
        names: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        result = compiled(names["f"])(*leaves())
        torch.testing.assert_close(result, names["f"](*leaves()))
        assert (compiled.traces > 0) is (folder == "first")


def test_named_results_of_operators_are_kept(compiled):
    """Any graph with ``topk`` or ``max`` over a dimension was compiled in every process."""

    def routed(x, w):
        scores, places = torch.topk((x @ w).softmax(-1), 2)
        best = x.max(1)
        return best, (scores * best.values[:, None]).sum() + places.float().mean(), x.sort(0)

    x, w = torch.randn(4, 5), torch.randn(5, 3, requires_grad=True)
    expected = routed(x, w)
    for hits in (False, True):
        found = compiled(routed)(x, w)
        torch.testing.assert_close(found, expected)
        assert list(map(type, found)) == list(map(type, expected))
        torch.testing.assert_close(
            torch.autograd.grad(found[1], w), torch.autograd.grad(expected[1], w, retain_graph=True)
        )
        assert (torchstrata.counters["cache_misses"] == 0) == hits
