"""A tensor whose size depends on data gets a shape: every other size is an error in eager mode, so
that the graph checks it and goes on.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

LOG: list[object] = []


def counts(t, w):
    return torch.bincount(t, minlength=4).reshape(2, 2) + w


def selected(t, w):
    return t.masked_select(t > 0).view(-1, 2) * 2


def after_writes(t, w):
    LOG.append(1)
    w.add_(1)
    found = torch.bincount(t, minlength=4).view(2, 2)
    LOG.append(2)
    w.mul_(2)
    return found + w


def caught(t, w):
    try:
        return torch.bincount(t, minlength=4).unflatten(0, (2, 2)) + w
    except RuntimeError as error:
        LOG.append(str(error))
        return w * 2


INPUTS = [torch.tensor(values) for values in ([0, 1, 3], [0, 9], [2, 2, 1, 3, 1], [1, 1, 3, 2])]


def outcome(call, t, w):
    try:
        result = call(t, w)
    except RuntimeError as error:
        result = str(error)
    return result, w, w._version, list(LOG)


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("f", [counts, selected, after_writes, caught])
def test_results_and_errors(f, backend):
    torchstrata.reset()
    found = []
    for call in (f, torchstrata.compile(f, backend=backend, fullgraph=True)):
        LOG.clear()
        w = torch.ones(2, 2)
        found.append([outcome(call, t, w) for t in INPUTS for _ in range(2)])
    assert str(found[0]) == str(found[1])
    assert torchstrata.counters["fallbacks"] == 0


def test_other_sizes_that_eager_mode_takes_break_the_graph():
    """A size of 1 is broadcast."""
    f = lambda t, w: t.masked_select(t > 0) + w  # noqa: E731
    compiled = torchstrata.compile(f, backend="eager")
    for t in (torch.ones(3), torch.tensor([0.0, 1.0, 0.0])):
        assert torch.equal(compiled(t, torch.ones(3)), f(t, torch.ones(3)))
    assert torchstrata.counters["graph_breaks"]
