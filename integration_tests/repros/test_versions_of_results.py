"""``_version`` of what a program computes counts its writes, as in eager mode; it broke the graph,
after which it was 0.
"""

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


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, is_marked):
        if is_marked:
            ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def written_by_functions_of_autograd(x):
    y, z = x * 2, x.detach().requires_grad_() * 2
    marked, unmarked, of_leaf = (
        InPlace.apply(y, True),
        InPlace.apply(y, False),
        InPlace.apply(z, True),
    )
    return y._version, marked._version, unmarked._version, of_leaf._version, marked is y


def written_by_functions_under_transforms(x):
    y = x * 1
    batched = torch.vmap(lambda row: y.add_(1).sum() + row)(x)
    return y._version, batched._version


PROGRAMS = [
    rows_written, written_through_views, written_by_operators_of_many_kinds,
    written_by_functions_of_autograd,
    written_by_functions_under_transforms, gradients, gradient_of_another_layout,
]  # fmt: skip


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


@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
@pytest.mark.parametrize("read", [lambda x: x.data, lambda x: torch.from_numpy(x.numpy())])
def test_writes_through_data_count_no_version_of_the_input(read, backend):
    """``as_strided`` is called on the base, whose version counted."""

    def function(x):
        read(x).as_strided((1, 3), (3, 1)).add_(1)

    x = torch.zeros(2, 3)
    torchstrata.compile(function, backend=backend)(x)
    assert (x[0].tolist(), x._version) == ([1] * 3, 0)
