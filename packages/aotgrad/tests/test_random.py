"""Random numbers: eager's sequence, eager's statistics, one mask for values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import aot_function, run_eager


def draws(x):
    unused = torch.rand(3)
    noisy = F.dropout(x, 0.3) + torch.randn_like(x) * torch.bernoulli(torch.full_like(x, 0.5))
    return noisy * torch.rand(x.shape[-1]), torch.randint(0, 9, (4,)), torch.randperm(5), unused.shape


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
        lambda x: F.dropout(x.exp(), 0.5).cos(), forward_compiler=run_eager, activation_memory_budget=budget
    )
    x = torch.rand(100, requires_grad=True)
    y = compiled(x)
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_two_draws_are_two_nodes():
    x = torch.ones(50, requires_grad=True)
    a, b = aot_function(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), forward_compiler=run_eager)(x)
    assert not torch.equal(a, b)
