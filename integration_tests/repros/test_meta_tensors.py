"""Programs on the meta device, whose tensors have sizes but no data."""

import bytecode_dynamo
import pytest
import torch
import torchstrata


def test_meta_tensors_are_one_graph(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")
    with torch.device("meta"):
        module, x = torch.nn.Linear(3, 4), torch.randn(2, 3, requires_grad=True)
    compiled = torchstrata.compile(module)
    for rows in (2, 5):
        result = compiled(x.new_empty(rows, 3))
        assert (result.shape, result.dtype, result.device.type) == ((rows, 4), x.dtype, "meta")
    compiled(x).sum().backward()
    assert module.weight.grad.shape == (4, 3) and x.grad.shape == (2, 3)
    assert not bytecode_dynamo.counters["graph_breaks"]


def test_other_devices_beside_meta_are_refused_or_right():
    def program(x, y):
        return x * 2, y * 2

    torchstrata.reset()
    with pytest.warns(torchstrata.FallbackWarning, match="meta"):
        made = torchstrata.compile(program)(torch.ones(2), torch.ones(3, device="meta"))
    assert torch.equal(made[0], torch.full((2,), 2.0))
    assert made[1].shape == (3,)
