"""Optimizers: a step is one graph, state made by the first step included."""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch

OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1),
    "SGD momentum": lambda ps: torch.optim.SGD(
        ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "SGD foreach": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=True),
    "Adam": lambda ps: torch.optim.Adam(ps, 0.1, weight_decay=0.01),
    "Adam foreach": lambda ps: torch.optim.Adam(ps, 0.1, foreach=True),
    "Adam single": lambda ps: torch.optim.Adam(ps, 0.1, foreach=False),
    "Adam tensor lr": lambda ps: torch.optim.Adam(ps, torch.tensor(0.1), foreach=False),
    "Adam maximize": lambda ps: torch.optim.Adam(ps, 0.1, maximize=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, 0.1),
    "AdamW foreach amsgrad": lambda ps: torch.optim.AdamW(ps, 0.1, foreach=True, amsgrad=True),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, 0.1),
    "RAdam": lambda ps: torch.optim.RAdam(ps, 0.1),
    "RAdam foreach decoupled": lambda ps: torch.optim.RAdam(
        ps, 0.1, weight_decay=0.01, foreach=True, decoupled_weight_decay=True
    ),
    "ASGD": lambda ps: torch.optim.ASGD(ps, 0.1, t0=2),
    "ASGD foreach": lambda ps: torch.optim.ASGD(ps, 0.1, foreach=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, 0.1),
    "groups": lambda ps: torch.optim.AdamW(
        [{"params": [p], "lr": 0.1 * k} for k, p in enumerate(ps, 1)]
    ),
}


def trained(make, wrap, steps=7):
    """Parameters and optimizer state after some steps."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = make(list(module.parameters()))
    step = wrap(lambda: optimizer.step())
    for k in range(steps):
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 * (k + 1))
        step()
    return [p.detach() for p in module.parameters()], optimizer.state_dict()["state"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_is_one_graph(name):
    expected, state = trained(OPTIMIZERS[name], lambda f: f)
    found, found_state = trained(OPTIMIZERS[name], bd.optimize("eager", fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found_state, state, rtol=1e-6, atol=1e-7)
    assert bd.counters["graphs"] <= 2


def test_learning_rate_is_guarded():
    def run(wrap):
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        optimizer = torch.optim.SGD([p], 0.1)
        step = wrap(optimizer.step)
        step()
        optimizer.param_groups[0]["lr"] = 0.5
        step()
        return p.detach()

    assert torch.equal(run(lambda f: f), run(bd.optimize("eager")))


def test_step_hooks_run(alike):
    log = []

    def run(wrap):
        log.clear()
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        optimizer = torch.optim.SGD([p], 0.1)
        optimizer.register_step_pre_hook(lambda *args: log.append("before"))
        optimizer.register_step_post_hook(lambda *args: log.append("after"))
        wrap(lambda: optimizer.step())()
        return p.detach(), list(log)

    assert alike(run(lambda f: f), run(bd.optimize("eager")))


def test_training_step_breaks_at_backward_only():
    def run(wrap):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = (module(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = wrap(step)
        x = torch.randn(5, 3)
        return [call(x) for _ in range(4)], [p.detach() for p in module.parameters()]

    expected = run(lambda f: f)
    found = run(bd.optimize("eager"))
    torch.testing.assert_close(found, expected)
    assert bd.counters["graph_breaks"] <= 3
