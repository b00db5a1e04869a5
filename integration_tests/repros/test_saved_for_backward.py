"""Backward read memory that callers may write to, where eager had saved a copy: it raised, or gave
another gradient.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

from integration_tests.repros.outcome import outcome

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
@pytest.mark.parametrize(
    "write", [lambda q: q.add_(1), lambda q: q.data.add_(1), lambda q: q.numpy().fill(3)]
)
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


RETURNED_COPIES = {
    "clone": lambda x: (lambda m: (m, m * m))(x.clone()),
    "times one": lambda x: (lambda m: (m, m.sin()))(x * 1),
    "products": lambda x: (lambda m: (m, m @ m.T @ m))(x.clone()),
}


@pytest.mark.parametrize("name", RETURNED_COPIES)
@pytest.mark.parametrize("write", [lambda x: x[:1].zero_(), lambda x: x.data.add_(1)])
def test_copies_of_inputs_that_are_returned(name, write):
    gradients = []
    for f in (RETURNED_COPIES[name], torchstrata.compile(RETURNED_COPIES[name])):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        copy, result = f(x)
        with torch.no_grad():
            write(x)
        (copy.sum() + result.sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


DATA = {
    "data": lambda x, a: x * a.data,
    "data of a new leaf": lambda x, a: x.detach().requires_grad_() * a.data,
    "a view of data": lambda x, a: x * a.data[None, :],
    "data, and the tensor": lambda x, a: x * a.data * a,
    "data of a view": lambda x, a: x * a[1:].data.sum(),
    "detached": lambda x, a: x * a.detach(),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("is_parameter", [False, True])
def test_writes_to_what_only_data_was_read_of(name, is_parameter):
    """Autograd hears of no write to what it has saved through ``.data``; the backward graph
    raised.
    """
    found = []
    for f in (DATA[name], torchstrata.compile(DATA[name])):
        x, a = torch.ones(3, 4, requires_grad=True), torch.ones(4)
        a = torch.nn.Parameter(a) if is_parameter else a
        result = f(x, a)
        with torch.no_grad():
            a.add_(1)
        error = outcome(result.sum().backward)
        found.append((error, None if error or x.grad is None else x.grad.tolist()))
    assert found[1] == found[0]
