"""Zeros went backward from results that the loss does not use: times infinity they were NaN."""

from __future__ import annotations

import itertools

import aotgrad
import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

PROGRAMS = {
    "inverse": lambda w: (1 / w, w * 2),
    "root of what is returned": lambda w: (lambda y: (y.sqrt(), y * 3))(w * w),
    "losses": lambda w: (w.log().sum(), (w * w).sum()),
    "three": lambda w: (1 / w, w.sqrt(), w.exp()),
    "norm": lambda w: (w[:1].norm(), w.sum()),
    "a hidden state": lambda w: (lambda h: (h, (h * 0 + w).sin()))(w.rsqrt()),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_unused_results_take_no_part(name, dynamic):
    compiled = torchstrata.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)
    count = len(PROGRAMS[name](torch.ones(3)))
    for places in (p for n in range(1, count + 1) for p in itertools.combinations(range(count), n)):
        gradients = []
        for call in (PROGRAMS[name], compiled):
            w = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
            results = call(w)
            sum(results[i].sum() for i in places).backward()
            gradients.append(w.grad)
        torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


def test_a_program_of_the_store(tmp_path):
    with torchstrata.config.patch(cache_dir=str(tmp_path)):
        for _ in range(2):
            torchstrata.reset()
            w = torch.tensor([0.0, 1.0], requires_grad=True)
            torchstrata.compile(PROGRAMS["inverse"])(w)[1].sum().backward()
            assert torch.equal(w.grad, torch.full((2,), 2.0))


class Heads(torch.nn.Module):
    """Two heads, whose input has a history of its own, one in common, or none."""

    def __init__(self, trunk):
        super().__init__()
        self.a, self.b, self.trunk = (torch.nn.Linear(4, 4) for _ in range(3))
        self.kind = trunk

    def forward(self, x):
        hidden = {
            "trained": self.trunk,
            "detached": lambda x: self.trunk(x).detach(),
            "none": lambda x: x,
        }[self.kind](x)
        return self.a(hidden).tanh().sum(), self.b(hidden).tanh().sum()


@pytest.mark.parametrize("trunk", ["trained", "detached", "none"])
def test_a_step_between_the_backward_passes_of_two_heads(trunk):
    """Autograd checks all that a node has saved: the second pass raised because of weights that it
    does not need.
    """

    def losses(wrap):
        torch.manual_seed(0)
        model = Heads(trunk)
        call, found = wrap(model), []
        optimizers = [torch.optim.SGD(head.parameters(), lr=0.1) for head in (model.a, model.b)]
        for step in range(3):
            for optimizer, loss in zip(optimizers, call(torch.ones(2, 4) * (step + 1))):
                optimizer.zero_grad()
                loss.backward(retain_graph=trunk == "trained" and optimizer is optimizers[0])
                optimizer.step()
                found.append(loss.detach())
        return found, [p.grad for p in model.parameters()]

    torch.testing.assert_close(losses(torchstrata.compile), losses(lambda model: model))


@pytest.mark.parametrize("written", ["a", "b", "trunk"])
@pytest.mark.parametrize("retain", [False, True])
def test_writes_to_what_a_backward_pass_needs_are_found(written, retain):
    def outcomes(wrap):
        torch.manual_seed(0)
        model = Heads("trained")
        losses, found = wrap(model)(torch.ones(2, 4, requires_grad=True)), []
        with torch.no_grad():
            getattr(model, written).weight.mul_(2)
        for loss in losses:
            found.append(outcome(lambda loss=loss: loss.backward(retain_graph=retain)))
        return found

    assert outcomes(torchstrata.compile) == outcomes(lambda model: model)


@pytest.mark.parametrize("rows", [(3, 3, 3), (3, 0, 3)])
@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_total_over_calls_that_keeps_its_history(rows, is_leaf):
    """Backward from the other result passed through the total's history, which had been freed, and
    raised.
    """

    def run(wrap):
        state = {}

        def step(x):
            result = x * 2
            state["total"] = state.get("total", 0) + result.sin().sum()
            return result * x

        call, found = wrap(step), []
        for count in rows:
            x = torch.ones(count, 4, requires_grad=True)
            call(x if is_leaf else x * 2).sum().backward()
            found.append(x.grad)
        return found, state["total"]

    torch.testing.assert_close(run(torchstrata.compile), run(lambda step: step))


def test_both_results_of_which_one_has_another_history():
    def function(x, y):
        shared = (x * 2).sin()
        return shared.exp(), (shared * y).cos()

    def run(call, which, retain):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        results = call(x * 2, y * 3)
        if retain:
            results[which].sum().backward(retain_graph=True)
        (
            results[0].sum() + 2 * results[1].sum() if which < 2 else results[which - 2].sum()
        ).backward()
        return x.grad, y.grad

    compiled = torchstrata.compile(function)
    for which, retain in ((0, False), (0, True), (1, True), (2, False), (3, False)):
        torch.testing.assert_close(run(compiled, which, retain), run(function, which, retain))


def test_a_partial_backward_takes_only_what_it_reads():
    graphs = []

    def compiler(graph, _):
        graphs.append(graph)
        return graph

    function = torchstrata.compile(
        lambda w, v: (w.exp(), v.exp()), backend=aotgrad.aot_backend(compiler, compiler)
    )
    w, v = (torch.ones(3, requires_grad=True) for _ in range(2))
    function(w, v)[1].sum().backward()
    assert w.grad is None and v.grad is not None
    for graph in graphs[1:]:
        assert all(node.users for node in graph.graph.find_nodes(op="placeholder"))
