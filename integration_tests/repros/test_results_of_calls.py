"""Calls whose results were those of something else: text of tensors, sizes taken for data, outputs
that do not fit.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


@pytest.mark.parametrize(
    "text",
    [
        lambda x: "%s" % x,  # noqa: UP031
        lambda x: "%r, %d" % (x, 3),  # noqa: UP031
        lambda x: x.__format__(""),
        torch.Tensor.__repr__,
    ],
)
def test_text_of_a_tensor(text):
    x = torch.arange(3.0)
    assert torchstrata.compile(lambda x: (text(x), x + 1), backend="eager")(x)[0] == text(x)


def test_a_size_is_no_data():
    def made(x):
        return (
            x.new(x.shape).shape,
            x.new(2, 3).shape,
            x.new([1.0, 2.0]),
            torch.Tensor(x.shape).shape,
            torch.Tensor([1, 2]),
        )

    x = torch.ones(4, 5)
    torch.testing.assert_close(torchstrata.compile(made, fullgraph=True)(x), made(x))


@pytest.mark.parametrize("shape", [(0,), (5, 6), (3, 3)])
@pytest.mark.parametrize("backend", ["aot_eager", "torchstrata"])
def test_an_output_argument_takes_the_size_of_the_result(shape, backend):
    def product(x, out):
        return torch.mm(x, x.t(), out=out) * 2

    x, out = torch.randn(3, 4), torch.empty(shape)
    doubled = torchstrata.compile(product, backend=backend, fullgraph=True)(x, out)
    torch.testing.assert_close((out, doubled), (x @ x.t(), x @ x.t() * 2))


@pytest.mark.parametrize("take", [True, False])
def test_branches_for_aot_eager(take):
    def chosen(x, take):
        return torch.cond(take, torch.sin, torch.exp, (x,)), torch.zeros(2, requires_grad=True)

    x = torch.randn(3, requires_grad=True)
    result, leaf = torchstrata.compile(chosen, backend="aot_eager", fullgraph=True)(
        x, torch.tensor(take)
    )
    torch.testing.assert_close(result, torch.sin(x) if take else torch.exp(x))
    assert leaf.is_leaf and leaf.requires_grad


def test_special_methods_of_the_tensor_class():
    """``torch.Tensor.__lt__(x, 1)`` answers for numbers as ``x < 1`` does."""

    def f(x):
        kind = torch.Tensor
        return (
            kind.__lt__(x, 1),
            kind.__radd__(x, 2),
            kind.__and__(x > 0, True),
            kind.__matmul__(x, x),
        )

    x = torch.randn(3, 3)
    torch.testing.assert_close(torchstrata.compile(f, fullgraph=True)(x), f(x))


@pytest.mark.parametrize("eps", [-1.0, 0.0, 0.3, 0.6, float("nan")])
def test_limits_of_logit(eps):
    """A limit above a half, below zero or not a number."""
    x = torch.tensor([-1.0, 0.0, 0.2, 0.5, 0.9, 1.0, 2.0, float("nan")], requires_grad=True)
    result, expected = (
        f(x, eps) for f in (torchstrata.compile(torch.logit, fullgraph=True), torch.logit)
    )
    torch.testing.assert_close(result, expected, equal_nan=True)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (result, expected)]
    torch.testing.assert_close(*grads, equal_nan=True)


def test_complex_numbers_beside_real_tensors(monkeypatch):
    monkeypatch.setattr(torchstrata.config, "fallback", "error")

    def f(x):
        return x == 1 + 0j, x != 1j, x * 2j

    x = torch.tensor([0.0, 1.0, -1.0])
    torch.testing.assert_close(torchstrata.compile(f, fullgraph=True)(x), f(x))


def test_elu_of_zero_with_an_infinite_slope():
    x = torch.tensor([0.0, -0.0, -1.0, 2.0])
    elu = torch.nn.functional.elu
    torch.testing.assert_close(
        torchstrata.compile(lambda x: elu(x, float("inf")))(x), elu(x, float("inf"))
    )


def test_a_conjugate_of_a_copy_is_no_input():
    x = torch.randn(3)
    result = torchstrata.compile(lambda x: torch.conj_physical_(x.clone()), fullgraph=True)(x)
    assert result is not x
    assert result.data_ptr() != x.data_ptr()


def test_a_graph_of_sizes_alone(monkeypatch):
    monkeypatch.setattr(torchstrata.config, "fallback", "error")

    def f(x):
        size = x.shape[0]
        return torch.arange(size).unsqueeze(0) + torch.ones(size, size)

    compiled = torchstrata.compile(f, fullgraph=True)
    for size in (3, 5, 1, 0):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), f(x))


@torch.library.custom_op("repros::split_by_sign", mutates_args=())
def split_by_sign(x: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[key > 0].clone(), key[key <= 0].clone()


@split_by_sign.register_fake
def _(x, key):
    assert x.device.type == "cpu"  # not that of the meta tensors underneath
    context = torch.library.get_ctx()
    return x.new_empty((context.new_dynamic_size(max=100), *x.shape[1:])), torch.empty(
        context.new_dynamic_size()
    )


def _split_backward(ctx, grad, _):
    x, key = ctx.saved_tensors
    out = torch.zeros_like(x)
    out[key > 0] = grad
    return out, None


split_by_sign.register_autograd(
    _split_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def test_an_operator_whose_sizes_only_the_running_program_knows():
    def f(x, key):
        positive, rest = split_by_sign(x, key)
        again, _ = split_by_sign(x.sin(), key)  # the same operands' metadata, another size
        return positive.cos().sum() + again.sum() * 3, rest * 2, positive.shape[0]

    compiled = torchstrata.compile(f, fullgraph=True)
    for key in (torch.randn(6), torch.randn(7), torch.ones(7), -torch.ones(9)):
        x, twin = (torch.ones(len(key), 2).requires_grad_() for _ in range(2))
        result, expected = compiled(x, key), f(twin, key)
        torch.testing.assert_close(result, expected)
        result[0].backward()
        expected[0].backward()
        torch.testing.assert_close(x.grad, twin.grad)


def test_memory_without_a_value_is_filled_on_request():
    def f(x):
        made = (
            x.new_empty(2),
            torch.empty_like(x),
            torch.empty(2, dtype=torch.int64),
            torch.empty_strided((2,), (1,)),
        )
        return x + 1, torch.empty(3), *made

    compiled, x = torchstrata.compile(f), torch.ones(2)
    compiled(x)
    torch.use_deterministic_algorithms(True)
    try:
        for expected, result in zip(f(x), compiled(x), strict=True):
            assert torch.equal(expected.nan_to_num(7), result.nan_to_num(7))
    finally:
        torch.use_deterministic_algorithms(False)
