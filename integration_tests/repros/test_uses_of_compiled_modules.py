"""Compiled modules inside of other modules and graphs, in training, and changed by torch's own
functions.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize, prune

from integration_tests.repros.compiled_modules import Backend, Scale, Shift, X, runs


def test_inside_of_other_modules(compiler: Any, backend: Backend) -> None:
    class Outer(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            inner = self.inner
            inner.extra = 3
            flags = (
                isinstance(inner, Scale),
                isinstance(inner, Shift),
                isinstance(inner, torch.nn.Module),
                callable(inner),
            )
            return inner(x) + inner.forward(x) + inner.weight, inner.calls, flags, inner

    scale = Scale()
    inner = compiler(scale)
    for outer in (torch.nn.Sequential(inner), compiler(torch.nn.Sequential(inner))):
        assert torch.equal(outer(X), X * 2) and list(outer.state_dict()) == ["0.weight", "0.steps"]
    plain = Outer(inner)
    for outer in (plain, compiler(plain, fullgraph=True), compiler(compiler(plain))):
        scale.calls, before = 0, backend.calls
        result, calls, flags, same = outer(X)
        torch.testing.assert_close(result, X * 4 + 2)
        assert (calls, flags, scale.calls, scale.extra) == (
            2,
            (True, False, True, True),
            2,
            3,
        ) and same is inner
        assert outer is plain or backend.calls == before + 1
    containers = compiler(torch.nn.Sequential(torch.nn.ReLU(), Scale()))

    def walk(x: torch.Tensor) -> torch.Tensor:
        for layer in containers:
            x = layer(x)
        return x * len(containers) + containers[1].weight

    torch.testing.assert_close(compiler(walk, fullgraph=True)(X), X.relu() * 4 + 2)


def test_trains(compiler: Any) -> None:
    compiled = compiler(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (compiled(X) - 1).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        lambda module: parametrize.register_parametrization(module, "weight", torch.nn.Tanh()),
        lambda module: prune.l1_unstructured(module, "weight", amount=0.5),
        lambda module: prune.random_structured(module, "weight", amount=1, dim=0),
        lambda module: torch.nn.utils.spectral_norm(module),
        lambda module: torch.nn.utils.weight_norm(module),
    ],
    ids=[
        "weight_norm",
        "spectral_norm",
        "orthogonal",
        "tanh",
        "prune",
        "structured",
        "old_spectral",
        "old_weight",
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_parametrizations(compiler: Any, backend: Backend, change: Any, called: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).eval()
    compiled = compiler(model)
    if called:
        compiled(X)
    state = torch.get_rng_state()
    expected = copy.deepcopy(model)
    change(expected)
    torch.set_rng_state(state)
    change(compiled)
    before = backend.calls
    torch.testing.assert_close(compiled(X), expected(X))
    assert backend.calls > before and list(model.state_dict()) == list(expected.state_dict())
    compiled(X).sum().backward()
    expected(X).sum().backward()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_parametrizations_are_removed(compiler: Any, backend: Backend) -> None:
    model = torch.nn.Linear(4, 4)
    compiled = parametrizations.weight_norm(compiler(model))
    assert parametrize.is_parametrized(compiled) and parametrize.is_parametrized(model)
    parametrize.remove_parametrizations(compiled, "weight")
    assert type(model) is torch.nn.Linear
    runs(backend, compiled, model(X))


def test_data_parallel_code(compiler: Any) -> None:
    compiled = compiler(Scale())
    replica = compiled._replicate_for_data_parallel()
    assert type(compiled).__name__ == type(replica).__name__ == "Scale"
    parallel = torch.nn.DataParallel(compiled)
    assert parallel.module is compiled
    torch.testing.assert_close(parallel.cpu()(X), X * 2)
    averaged = torch.optim.swa_utils.AveragedModel(compiled)
    averaged.update_parameters(compiled)
    torch.testing.assert_close(averaged(X), X * 2)


def test_the_other_compiler_looks_inside(compiler: Any) -> None:
    compiled = compiler(torch.nn.ReLU())
    for function in (
        lambda x: compiled(x),
        lambda x: compiled.forward(x),
        torch.nn.Sequential(compiled),
    ):
        assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(X), X.relu())
