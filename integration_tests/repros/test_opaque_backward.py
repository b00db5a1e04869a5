"""Custom operators whose backward formula reads numbers of its tensors."""

import aotgrad
import pytest
import torch
import torchstrata


def _rows(x, ends):
    start = 0
    for end in ends.tolist():
        yield slice(start, end)
        start = end


@torch.library.custom_op("test_opaque::grouped", mutates_args=())
def grouped(
    x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor, *, scale: float = 1.0
) -> torch.Tensor:
    result = x.new_zeros(x.shape[0], weight.shape[2])
    for group, rows in enumerate(_rows(x, ends)):
        result[rows] = scale * (x[rows] @ weight[group])
    return result


@grouped.register_fake
def _(x, weight, ends, *, scale=1.0):
    return x.new_empty(x.shape[0], weight.shape[2])


def _setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.scale = keyword_only_inputs["scale"]


def _backward(ctx, gradient):
    x, weight, ends = ctx.saved_tensors
    to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
    for group, rows in enumerate(_rows(x, ends)):
        to_x[rows] = ctx.scale * (gradient[rows] @ weight[group].T)
        to_weight[group] = ctx.scale * (x[rows].T @ gradient[rows])
    return to_x, to_weight, None


grouped.register_autograd(_backward, setup_context=_setup)


def experts(x, weight, ends):
    return (torch.ops.test_opaque.grouped(x.sin(), weight, ends, scale=2.0).cos() * x.sum()).sum()


def gradients(function, *args):
    leaves = [a.clone().requires_grad_() for a in args if a.is_floating_point()]
    loss = function(*leaves, *(a for a in args if not a.is_floating_point()))
    return loss, torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(dynamic):
    compiled = torchstrata.compile(experts, dynamic=dynamic, options={"fallback": "error"})
    weight = torch.randn(3, 4, 5, dtype=torch.double)
    for ends in ([2, 2, 6], [1, 5, 6]):
        args = torch.randn(6, 4, dtype=torch.double), weight, torch.tensor(ends)
        torch.testing.assert_close(gradients(compiled, *args), gradients(experts, *args))
    # where one of them needs no gradient
    x = torch.randn(6, 4, dtype=torch.double, requires_grad=True)
    ends = torch.tensor([3, 4, 6])
    found = torch.autograd.grad(compiled(x, weight, ends), x)
    torch.testing.assert_close(found, torch.autograd.grad(experts(x, weight, ends), x))


@torch.library.custom_op("test_opaque::parts", mutates_args=())
def parts(xs: list[torch.Tensor], count: torch.Tensor) -> list[torch.Tensor]:
    return [x * int(count) for x in xs]


@parts.register_fake
def _(xs, count):
    return [torch.empty_like(x) for x in xs]


def _parts_backward(ctx, gradients):
    return [None if g is None else g * int(ctx.count) for g in gradients], None


parts.register_autograd(
    _parts_backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "count", inputs[1])
)


def test_lists_of_tensors():
    def program(x, y, count):
        first, second = torch.ops.test_opaque.parts([x.sin(), y.cos()], count)
        return (first * second).sum()

    compiled = torchstrata.compile(program, options={"fallback": "error"})
    args = torch.randn(3), torch.randn(3), torch.tensor(3)
    torch.testing.assert_close(gradients(compiled, *args), gradients(program, *args))


@torch.library.custom_op("test_opaque::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x * by.item()


scaled.register_fake(lambda x, by: torch.empty_like(x))


def _save(ctx, inputs, output):
    ctx.by = inputs[1]


scaled.register_autograd(lambda ctx, g: (g * ctx.by.item(), None), setup_context=_save)


def test_arguments_without_gradients():
    compiled = torchstrata.compile(lambda x, by: torch.ops.test_opaque.scaled(x, by).sum())
    x, by = torch.ones(3, requires_grad=True), torch.tensor(2.0)
    compiled(x, by).backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    loss = compiled(x, by.requires_grad_())
    with pytest.raises(RuntimeError, match="test_opaque.scaled.default gives None for an argument"):
        loss.backward()


def test_second_derivative_is_refused():
    x, weight = (
        torch.randn(6, 4, dtype=torch.double, requires_grad=True),
        torch.randn(3, 4, 5, dtype=torch.double),
    )
    loss = torchstrata.compile(experts)(x, weight, torch.tensor([2, 3, 6]))
    with pytest.raises(aotgrad.Unsupported, match="create_graph=True through test_opaque.grouped"):
        torch.autograd.grad(loss, x, create_graph=True)
