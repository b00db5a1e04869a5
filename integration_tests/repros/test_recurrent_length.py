"""Recurrent networks that a library runs as one call were unrolled over time when they trained:
hundreds of kernels, and a program per length.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torchstrata
from torch import nn


@pytest.mark.parametrize(
    "settings",
    [
        {"num_layers": 2, "batch_first": True},
        {"bidirectional": True, "bias": False},
        {"num_layers": 3, "bidirectional": True, "batch_first": True},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_lstm_is_a_call_per_layer_and_direction(settings, dtype):
    network = nn.LSTM(5, 6, **settings).to(dtype)
    expected = copy.deepcopy(network)
    x = torch.randn(30, 30, 5, dtype=dtype)
    compiled = torchstrata.compile(network, fullgraph=True)
    before = torchstrata.counters["generated_kernels"]
    for run in (compiled, expected):
        out, (hidden, cell) = run(x)
        (out.sum() + hidden.square().sum() + cell.sum()).backward()
    assert torchstrata.counters["generated_kernels"] - before < 20
    for mine, theirs in zip(network.parameters(), expected.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_lengths_become_symbolic():
    network = nn.LSTM(5, 6, batch_first=True)
    compiled = torchstrata.compile(network, fullgraph=True)
    before = torchstrata.counters["graphs"]
    for length in range(3, 12):
        x = torch.randn(2, length, 5)
        torch.testing.assert_close(compiled(x), network(x))
    assert torchstrata.counters["graphs"] - before <= 2
