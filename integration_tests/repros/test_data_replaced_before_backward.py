"""``.data`` replaces the memory of what autograd has saved: the backward graph read it with the strides from before."""

from __future__ import annotations

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

LAYOUTS = {
    "columns": lambda x: x[:, 2:6],
    "transposed": lambda x: x[:, :3].t(),
    "dense": lambda x: x * 1,
}
CHANGES = {
    "dense": lambda x: x.data + 1,
    "transposed": lambda x: x.data.t().contiguous().t(),
    "expanded": lambda x: x.data[:1].expand(x.shape),
    "fewer": lambda x: x.data[:2].clone(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_the_values_there(layout, change, dynamic):
    def run(call):
        leaf = torch.arange(24.0).reshape(3, 8).requires_grad_()
        x = LAYOUTS[layout](leaf)
        result = call(x)
        x.data = CHANGES[change](x)
        raised = outcome(result.sum().backward)
        return raised, None if raised or leaf.grad is None else leaf.grad.tolist()

    def function(x):
        return x.clamp(2, 20) * 2

    assert run(torchstrata.compile(function, dynamic=dynamic)) == run(function)
