"""Hooks of parameters run in the order in which eager mode's backward arrives at them, although one
node hands all on.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch import nn


class Shared(nn.Module):
    """Uses a weight twice, parts of another one, and one not at all."""

    def __init__(self):
        super().__init__()
        self.unused, self.scale = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4))
        self.first, self.norm, self.last = (
            nn.Linear(4, 4),
            nn.LayerNorm(4),
            nn.Linear(4, 4, bias=False),
        )
        self.table = nn.Embedding(5, 4)

    def forward(self, x):
        hidden = self.first(x) * self.scale + self.table.weight[: x.shape[0]]
        return self.last(self.norm(hidden)) + hidden @ self.first.weight


class Broken(nn.Sequential):
    """Two graphs."""

    def forward(self, x):
        hidden = self[0](x)
        torchstrata.graph_break()
        return self[1](hidden)


MODULES = {
    "plain": lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(9))),
    "shared": Shared,
    "gru": lambda: nn.GRU(4, 4, 2),
    "both directions": lambda: nn.GRU(4, 4, 2, bidirectional=True),
    "without biases": lambda: nn.RNN(4, 4, 2, bidirectional=True, bias=False),
    "encoder": lambda: nn.Sequential(
        nn.Unflatten(0, (1, 3)), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    ),
    "broken": lambda: Broken(Shared(), Shared()),
}


def order(module, run, make_input):
    log, x = [], make_input()
    if x.is_leaf and x.requires_grad:
        x.register_hook(lambda _: log.append("input"))
    handles = []
    for name, p in module.named_parameters():
        handles.append(p.register_hook(lambda _, name=name: log.append(f"at {name}")))
        handles.append(
            p.register_post_accumulate_grad_hook(lambda _, name=name: log.append(f"after {name}"))
        )
    out = run(x)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    for handle in handles:
        handle.remove()
    return log


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kind", ["plain", "leaf", "computed"])
def test_hooks_run_in_eagers_order(name, kind):
    module = MODULES[name]()

    def make_input():
        leaf = torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_(kind != "plain")
        return leaf * 2 if kind == "computed" else leaf

    expected = order(module, module, make_input)
    assert len(expected) > 7 and order(module, torchstrata.compile(module), make_input) == expected


REGISTER = {
    "after": lambda p, hook: p.register_post_accumulate_grad_hook(hook),
    "at": lambda p, hook: p.register_hook(hook),
}


@pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_hooks_registered_after_a_step_was_compiled(register, backend):
    """A graph with ``backward()`` inside was captured when the parameter had no hooks, and no guard
    said so.
    """

    def step(p, x):
        (p * x).sum().backward()

    torchstrata.reset()
    logs = []
    for call in (step, torchstrata.compile(step, backend=backend)):
        log: list[str] = []
        p, x = nn.Parameter(torch.ones(3)), torch.ones(3)
        call(p, x)
        handle = register(p, lambda _, log=log: log.append("called"))
        call(p, x)
        handle.remove()
        call(p, x)
        register(p, lambda _, log=log: log.append("again"))
        call(p, x)
        logs.append((log, p.grad.tolist()))
    assert logs[0] == logs[1] == (["called", "again"], [4.0] * 3)
