"""Sizes that depend on data stay in the graph as long as nothing asks for them: where a call works
for some sizes only, the graph breaks, since eager mode may broadcast or raise an error of its own.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from .outcome import outcome


def selected(x):
    return x[(x > 0.5)[:, 0]]


def first(x):
    m = selected(x)
    x += 1
    return m[0] + 1


def last(x):
    return selected(x).select(0, -1) * 2


def broadcast(x):
    m = selected(x)
    x += 1
    return m * torch.ones(2, 4)


def viewed(x):
    return selected(x).view(2, 4) + 1


def reduced(x):
    m = selected(x)
    return m.sum(0), m.max(0)[0]


def joined(x):
    m = selected(x)
    return torch.cat([m, x]).sum(0), torch.stack([m, m]), m.t() @ m


def counted(x):
    m = selected(x)
    return m.mean(0) if len(m) > 1 else m


BREAKS = {first: 0, last: 0, joined: 0, broadcast: 1, viewed: 1, reduced: 1, counted: 1}


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("program", BREAKS, ids=lambda program: program.__name__)
def test_results_and_errors_are_eagers(program, backend):
    torchstrata.reset()
    compiled = torchstrata.compile(program, backend=backend)
    for rows in (2, 0, 1, 3, 2):
        found = []
        for call in (program, compiled):
            x = torch.zeros(3, 4)
            x[:rows] = 1
            found.append(repr((outcome(call, x), x)))
        assert found[0] == found[1]
    counters = torchstrata.counters
    assert (counters["graph_breaks"], counters["fallbacks"]) == (BREAKS[program], 0)
