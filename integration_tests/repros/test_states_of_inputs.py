"""Inputs in states that kernels do not see: history, lazy negation, empty and single sizes, sizes
that prove equal.
"""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
import torch.nn.functional as F
import torchstrata


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    torchstrata.reset()
    monkeypatch.setattr(torchstrata.config, "fallback", "error")


def write(x):
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("make", [torch.clone, lambda w: w.clone()[1:]])
def test_a_result_that_requires_grad_is_written_to_in_one_graph(make):
    compiled = torchstrata.compile(write, fullgraph=True)
    results = []
    for call in (write, compiled):
        leaf = torch.arange(24.0).reshape(4, 6).requires_grad_()
        x = make(leaf)
        y = call(x)
        (x.sum() + y.square().sum()).backward()
        results.append((x, y, leaf.grad))
    torch.testing.assert_close(*results)


def test_a_view_of_a_leaf_is_not_written_to():
    compiled = torchstrata.compile(write)
    for make in (torch.clone, torch.Tensor.view_as):
        leaf = torch.ones(4, 6, requires_grad=True)
        x = make(leaf, leaf) if make is torch.Tensor.view_as else make(leaf)
        if make is torch.clone:
            compiled(x)
            continue
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            compiled(x)
        assert torch.equal(leaf, torch.ones(4, 6))


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("lazy", [torch._neg_view, torch.conj, lambda x: x.conj().imag])
def test_inputs_that_are_negated_or_conjugated_lazily(lazy, write):
    def f(x, w):
        if write:
            x.mul_(2)
        return (x * w).abs(), x, x.t()

    compiled = torchstrata.compile(f, fullgraph=True)
    results = []
    for call in (f, compiled, compiled):
        leaf, w = (
            torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_(),
            torch.tensor(1.5, requires_grad=True),
        )
        base = torch.complex(leaf * 1, leaf * 2)
        x = lazy(base)
        outs = call(x, w)
        assert outs[1] is x and outs[2].is_conj() == x.is_conj() and outs[2].is_neg() == x.is_neg()
        results.append(
            (outs, base, *torch.autograd.grad(outs[0].sum() + base.abs().sum(), (leaf, w)))
        )
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])
    assert not torchstrata.counters["fallbacks"]


@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_a_scan_along_one_element_gives_memory_of_its_own(scan):
    x = torch.randn(1, 5)
    result = torchstrata.compile(lambda x: scan(x, 0))(x)
    assert result.data_ptr() != x.data_ptr() and torch.equal(result, x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_out_keeps_its_strides(dynamic):
    def program(x):
        rows, columns = torch.empty(4, 6), torch.empty(6, 4).t()
        return torch.add(x, 1, out=rows), torch.mul(x, 2, out=columns), rows, columns

    for x in (torch.randn(4, 6), torch.randn(6, 4).t()):
        for result, expected in zip(torchstrata.compile(program, dynamic=dynamic)(x), program(x)):
            assert result.stride() == expected.stride() and torch.equal(result, expected)


def test_sizes_that_prove_equal_while_the_backward_is_traced():
    compiled = torchstrata.compile(lambda x, w, b: F.conv2d(x, w, b, padding=1), dynamic=True)
    tensors = [torch.randn(2, 4, 7, 6), torch.randn(6, 4, 3, 3), torch.randn(6)]
    tensors = [
        t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors
    ]
    leaves = [t.requires_grad_() for t in tensors]
    expected = torch.autograd.grad(F.conv2d(*leaves, padding=1).sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves).sum(), leaves), expected)


def test_gradients_of_rows_without_elements():
    x = torch.randn(3, 0, requires_grad=True)
    chosen = torch.zeros(2, dtype=torch.long)
    torchstrata.compile(lambda x: (x[..., :0], x[chosen], x[:0]))(x)[1].sum().backward()
    assert x.grad is not None and x.grad.shape == (3, 0)


def test_gradients_that_are_zero_everywhere():
    x = torch.randn(3, 4, requires_grad=True)
    torchstrata.compile(lambda x: torch.sgn(x * 3) + x)(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4))


@pytest.mark.parametrize(
    "factor", [torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.solve(a, a)]
)
def test_a_factorisation_that_fails_raises(factor):
    compiled, good = torchstrata.compile(lambda a: factor(a) * 2), 2 * torch.eye(3)
    torch.testing.assert_close(compiled(good), factor(good) * 2)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros(3, 3))


def test_an_inference_tensor_is_written_to():
    with torch.inference_mode():
        x = torch.ones(3)
        result = torchstrata.compile(write, fullgraph=True)(x)
    assert torch.equal(x, torch.full((3,), 2.0)) and torch.equal(result, x * 2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size, step", [(3, 3), (2, 3)])
def test_windows_that_leave_out_elements_are_written_to(size, step, dynamic):
    def program(x):
        x.unfold(0, size, step)[1].mul_(2)
        return x + 1, x.unfold(0, size, step)

    compiled, inputs = (
        torchstrata.compile(program, dynamic=dynamic, fullgraph=True),
        [torch.randn(10, 2)] * 2,
    )
    written, expected = (x.clone() for x in inputs)
    torch.testing.assert_close((compiled(written), written), (program(expected), expected))
    with pytest.raises(Exception, match="AG029"):
        torchstrata.compile(lambda x: x.unfold(0, 3, 2)[0].mul_(2), fullgraph=True)(written)


@pytest.mark.parametrize("lazy", [lambda x: torch.complex(x, x * 2).conj().imag, torch._neg_view])
def test_values_that_are_negated_lazily(lazy):
    def program(x):
        return lazy(x) * 2, lazy(x).sum(), lazy(x).clone()

    results = []
    for call in (program, torchstrata.compile(program, fullgraph=True)):
        x = torch.arange(4.0).requires_grad_()
        values = call(x)
        sum(v.square().sum() for v in values).backward()
        results.append((values, x.grad))
    torch.testing.assert_close(*results)


def test_derivatives_twice_after_writes():
    def f(x, w):
        x.mul_(2)
        with torch.no_grad():
            w.mul_(3)
        return x * w.square().sum()

    results = []
    for call in (f, torchstrata.compile(f, fullgraph=True)):
        x, w = torch.arange(1.0, 4), torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
        (first,) = torch.autograd.grad(call(x, w).square().sum(), w, create_graph=True)
        results.append((first, *torch.autograd.grad(first.sum(), w)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dynamic", [False, True])
def test_written_inputs_that_share_elements_stay_in_one_graph(dynamic):
    def f(x, y, w):
        x.mul_(2)
        y[0] += x.sum() * w.detach()
        return (x + 1) * w, y[1:]

    compiled = torchstrata.compile(f, fullgraph=True, dynamic=dynamic)
    for n in (4, 5):
        results = []
        for call in (f, compiled):
            base = torch.arange(24.0).requires_grad_() * 1
            w = torch.tensor(0.5, requires_grad=True)
            outs = call(base[: 2 * n], base.view(4, 6)[1:], w)
            results.append(
                (outs, base, *torch.autograd.grad(outs[0].sum() + base.square().sum(), w))
            )
        torch.testing.assert_close(*results)
    assert not torchstrata.counters["fallbacks"]


@pytest.mark.parametrize(
    "fill", [lambda x, y: x.copy_(y), lambda x, y: x.zero_(), lambda x, y: x.fill_(3)]
)
def test_an_input_that_is_made_larger_and_written_over(fill):
    def grown(x, y):
        x.resize_(2, 4)
        fill(x, y)
        x[1] += 2
        return x * 2

    results = []
    for call in (grown, torchstrata.compile(grown, fullgraph=True)):
        memory = torch.arange(7.0)
        x = memory[2:5]
        results.append((call(x, torch.ones(2, 4)), x, memory))
        assert x.data_ptr() == memory.data_ptr() + 8
    torch.testing.assert_close(*results)


def fill_masked(x, mask):
    y = x.clone()
    y[mask] = 0.5
    return y


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mask_has_the_sizes_of_what_it_selects_from(dynamic):
    compiled = torchstrata.compile(fill_masked, dynamic=dynamic)
    for shape in ((4, 6), (5, 7), (3, 2)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x, x > 0), fill_masked(x, x > 0))
    for select in (fill_masked, torch.Tensor.__getitem__):
        with pytest.raises(IndexError, match=r"mask \[4, 5\] at index 1"):
            torchstrata.compile(select, dynamic=dynamic)(
                torch.randn(4, 6), torch.ones(4, 5, dtype=torch.bool)
            )


def test_the_largest_of_no_numbers():
    with pytest.raises(RuntimeError, match=r"max\(\)"):
        torchstrata.compile(torch.Tensor.max)(torch.randn(0))
    with pytest.raises(bytecode_dynamo.Unsupported, match=r"max\(\)"):
        torchstrata.compile(torch.Tensor.max, fullgraph=True)(torch.randn(0))


def test_a_class_that_answers_for_absent_attributes(monkeypatch):
    """Marks of dimensions are the instance's, not what the class says of any name."""
    monkeypatch.setattr(torch.Tensor, "__getattr__", lambda t, name: 50, raising=False)
    bytecode_dynamo.reset()
    with bytecode_dynamo.config.patch(fallback="error"):
        compiled = bytecode_dynamo.optimize("eager")(lambda x: x.zork + x)
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 51.0))
