"""Backward read memory that callers may write to, where eager had saved a copy: it raised, or gave another gradient."""

from __future__ import annotations

import pytest
import torch
import torchstrata

COPIES = {
    "clone": lambda w, q: (w * q.clone()).sum(),
    "clone, viewed": lambda w, q: (w * q.clone().view(-1)).sum(),
    "copy_": lambda w, q: (w * torch.empty_like(q).copy_(q)).sum(),
    "to": lambda w, q: (w * q.to(q.dtype, copy=True)).sum(),
    "times one": lambda w, q: (w * (q * 1)).sum(),
    "minus zero": lambda w, q: (w * (q - 0)).sum(),
    "to the power of one": lambda w, q: (w * q**1).sum(),
    "beside another factor": lambda w, q: (w.sin() * q.clone()).sum(),
}
OUTPUTS = {
    "a clone is read": lambda w: (lambda y: (y, (w * y.clone()).sum()))(w.sin()),
    "a clone is returned": lambda w: (lambda y: (y.clone(), (w * y).sum()))(w.sin()),
    "computed twice": lambda w: (w.sin(), (w * w.sin()).sum()),
    "its own result": lambda w: (lambda y: (y * 1, y.sum()))(w.exp()),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("write", [lambda q: q.add_(1), lambda q: q.data.add_(1), lambda q: q.numpy().fill(3)])
def test_inputs(name, write):
    gradients = []
    for f in (COPIES[name], torchstrata.compile(COPIES[name])):
        w, q = torch.linspace(-1, 1, 6, requires_grad=True), torch.linspace(1, 2, 6)
        loss = f(w, q)
        write(q)
        loss.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    gradients = []
    for f in (OUTPUTS[name], torchstrata.compile(OUTPUTS[name])):
        w = torch.linspace(-1, 1, 6, requires_grad=True)
        output, loss = f(w)
        output.data.zero_()
        loss.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
