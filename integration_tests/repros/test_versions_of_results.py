"""``_version`` of what a program computes counts its writes, as in eager mode; it broke the graph, after which it was 0."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def rows_written(x):
    y = torch.zeros(2, 3)
    y[0] = x[0]
    y[1] = y[0] * 2
    return y._version, y * x


def written_through_views(x):
    y = x * 2
    y.t().mul_(2)
    detached, data = y.detach(), y.data
    detached.add_(1)
    data.add_(1)
    return y._version, detached._version, data._version


def written_by_operators_of_many_kinds(x):
    y = x * 2
    y.clamp_(0, 1).sqrt_()
    y.index_add_(0, torch.tensor([0]), x[:1])
    torch.add(x, 1, out=y)
    torch._foreach_add_([y, x * 3], 1)
    torch.nn.functional.relu(y, inplace=True)
    return y._version, torch.nn.init.uniform_(y)._version


def gradients(x):
    w = x.detach().clone().requires_grad_()
    (w**2).sum().backward()
    first = w.grad._version
    (w**3).sum().backward()
    return first, w.grad._version, w.grad


def gradient_of_another_layout(x):
    w = x.detach().clone().requires_grad_()
    w.sum().backward()
    return w.grad._version, w.grad.stride()


PROGRAMS = [rows_written, written_through_views, written_by_operators_of_many_kinds, gradients, gradient_of_another_layout]


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_versions_are_eagers(program, backend):
    compiled = torchstrata.compile(program, backend=backend, fullgraph=True)
    for x in (torch.ones(2, 3), torch.ones(3, 2).t()):
        assert repr(compiled(x)) == repr(program(x))


@pytest.mark.filterwarnings("error")
@torch.inference_mode()
def test_inference_tensors_have_none():
    with pytest.raises(RuntimeError, match="do not track version"):
        torchstrata.compile(lambda x: (x * 2)._version, backend="eager")(torch.ones(3))
