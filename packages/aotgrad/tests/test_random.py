"""Random numbers: eager's sequence, eager's statistics, one mask for values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_function, redraw_masks, run_eager
from aotgrad.graphs import dropout_masks as masks


def draws(x):
    unused = torch.rand(3)
    noisy = F.dropout(x, 0.3) + torch.randn_like(x) * torch.bernoulli(torch.full_like(x, 0.5))
    return (
        noisy * torch.rand(x.shape[-1]),
        torch.randint(0, 9, (4,)),
        torch.randperm(5),
        unused.shape,
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_eagers_sequence_is_reproduced(requires_grad):
    x = torch.ones(6, 4, requires_grad=requires_grad)
    compiled = aot_function(draws, forward_compiler=run_eager, fallback_random=True)
    for _ in range(2):
        torch.manual_seed(5)
        expected, state = draws(x), torch.get_rng_state()
        torch.manual_seed(5)
        torch.testing.assert_close(compiled(x)[:3], expected[:3])
        assert torch.equal(torch.get_rng_state(), state)


def test_calls_draw_new_numbers():
    compiled = aot_function(lambda x: F.dropout(x, 0.5), forward_compiler=run_eager)
    x = torch.ones(1000)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    assert abs((first == 0).float().mean() - 0.5) < 0.08 and abs(first.mean() - 1) < 0.16


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_backward_has_the_mask_of_forward_and_leaves_the_generator_alone(budget):
    compiled = aot_function(
        lambda x: F.dropout(x.exp(), 0.5).cos(),
        forward_compiler=run_eager,
        activation_memory_budget=budget,
    )
    x = torch.rand(100, requires_grad=True)
    y = compiled(x)
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_two_draws_are_two_nodes():
    x = torch.ones(50, requires_grad=True)
    a, b = aot_function(
        lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), forward_compiler=run_eager
    )(x)
    assert not torch.equal(a, b)


def two_dropouts(x, w):
    return F.dropout(F.gelu(F.dropout(x @ w, 0.3)), 0.6)


@pytest.fixture
def redrawn(monkeypatch):
    """Compiles with masks that backward draws again, on the CPU, too; ``texts`` are the
    artifacts.
    """
    monkeypatch.setattr(masks, "DEVICES", frozenset({"cpu", "cuda"}))
    texts: dict[str, str] = {}

    def compiled(f):
        return aot_function(
            f, forward_compiler=run_eager, passes=(redraw_masks,), on_artifact=texts.__setitem__
        )

    return compiled, texts


def test_redrawn_masks_are_those_of_forward(redrawn):
    compiled, texts = redrawn
    x, w = torch.rand(40, 8) + 1, (torch.rand(8, 30) + 1).requires_grad_()
    call = compiled(two_dropouts)
    first, y = call(x, w), call(x, w)
    assert not torch.equal(first == 0, y == 0) and abs((y == 0).double().mean() - 0.72) < 0.06
    y.sum().backward()
    held = w.grad.clone()
    (again,) = torch.autograd.grad(y.grad_fn is not None and call(x, w).sum(), w)
    assert not torch.equal(held, again)
    assert (
        "seeded_mask" in texts["backward"] and texts["forward"].count(".random_seed.default(") == 1
    )
    assert "bool" not in texts["partition"]
    # the gradient of a program that is linear in its weight, by the mask that its result shows
    linear = compiled(lambda x, w: F.dropout(x * w, 0.5))
    v = torch.ones(40, 8, requires_grad=True)
    out = linear(x, v)
    out.sum().backward()
    torch.testing.assert_close(v.grad, out.detach())


def test_gradients_of_gradients_have_the_masks_of_forward(redrawn):
    compiled, _ = redrawn
    x = torch.rand(200, requires_grad=True)
    y = compiled(lambda x: F.dropout(x.exp(), 0.5))(x)
    (once,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    torch.testing.assert_close(once.detach(), y.detach())
    torch.testing.assert_close(twice, y.detach())
