"""oneDNN's LSTM keeps a workspace for backward only in grad mode, of a size that no meta function
knows.
"""

from __future__ import annotations

import copy

import bytecode_dynamo
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


@pytest.mark.parametrize(
    "kind",
    [
        torch.nn.GRU,
        *(pytest.param(k, marks=pytest.mark.slow) for k in (torch.nn.LSTM, torch.nn.RNN)),
    ],
)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("form", ["rows", "batch_first", "packed"])
def test_dropout_between_layers_is_eagers(kind, bidirectional, form):
    network = kind(
        5, 6, 3, dropout=0.5, bidirectional=bidirectional, batch_first=form == "batch_first"
    )
    compiled = torchstrata.compile(
        lambda x: network(x), fullgraph=form != "packed", options={"fallback_random": True}
    )
    x = torch.randn(3, 4, 5)
    if form == "packed":
        x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2, 2, 1]))
    results = []
    for run in (network, compiled):
        torch.manual_seed(3)
        out, ends = run(x)
        results.append((getattr(out, "data", out), ends, torch.get_rng_state()))
    torch.testing.assert_close(*results)


def test_packed_sequences_under_fullgraph_are_refused_by_name():
    """The lengths of the steps are numbers in a tensor, which a kernel reads on its own."""
    network = torch.nn.GRU(5, 6, 2, dropout=0.5)
    x = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 5), torch.tensor([3, 2]))
    with pytest.raises(bytecode_dynamo.Unsupported, match="numbers from a tensor"):
        torchstrata.compile(lambda x: network(x), fullgraph=True)(x)


@pytest.mark.parametrize("dropout", [torch.dropout, torch.alpha_dropout, torch.feature_dropout])
def test_a_dropout_of_everything_draws_nothing(dropout):
    state = torch.get_rng_state()
    x = torch.tensor([[1.0, float("inf")]])
    result = torchstrata.compile(
        lambda x: dropout(x, 1.0, True), options={"fallback_random": True}
    )(x)
    torch.testing.assert_close(result, dropout(x, 1.0, True), equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)
