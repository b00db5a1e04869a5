"""oneDNN's LSTM keeps a workspace for backward only in grad mode, of a size that no meta function knows."""

from __future__ import annotations

import copy

import pytest
import torch
import torchstrata


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_recurrent_network_trains(kind):
    network = kind(5, 6, 2, batch_first=True, bidirectional=True)
    mine = copy.deepcopy(network)
    compiled = torchstrata.compile(mine, fullgraph=True)
    x = torch.randn(2, 4, 5)
    for run in (network, compiled):
        out, _ = run(x)
        out.square().sum().backward()
    for a, b in zip(mine.parameters(), network.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
