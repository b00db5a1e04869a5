"""Calls that the host makes between compiled pieces: hooks, generators, settings, numbers in
tensors as indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchstrata
from torch.utils import _pytree as pytree


class Doubled(torch.Tensor):
    """A wrapper whose operators work on what it holds."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        held = pytree.tree_map_only(Doubled, lambda wrapped: wrapped.held, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Doubled, func(*held[0], **held[1]) * 2)


def hook_after_use(x: torch.Tensor) -> torch.Tensor:
    """The hook sees what comes through ``z``, which was computed before it was registered."""
    y = x * 2
    z = y * 3
    seen: list[torch.Tensor] = []
    y.register_hook(lambda grad: seen.append(grad) or grad * 2)
    return z.sum() + y.sum()


def retained(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.sin()
    z = y.exp()
    y.retain_grad()
    return z.sum(), y


def default_dtype(x: torch.Tensor) -> torch.Tensor:
    """What is made while the setting holds has its dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch.set_default_dtype(before)
    return x + y


def drawn_twice(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        y = x + torch.rand(3, generator=generator)
    return y * torch.rand(3, generator=generator)


def indexed(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y.argmax()] = 0
    return y[y.argmin()] * y


def new_leaf(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.ones(3, requires_grad=True)
    return (weight * x).sum(), weight


def _gradients(result: Any, x: torch.Tensor) -> list[Any]:
    outputs = [t for t in pytree.tree_leaves(result) if t.requires_grad]
    outputs[0].sum().backward()
    return [x.grad, *(t.grad for t in outputs[1:])]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    "f", [hook_after_use, retained, default_dtype, drawn_twice, indexed, new_leaf]
)
def test_as_in_eager_mode(f: Callable[..., Any]) -> None:
    torchstrata.reset()
    compiled = torchstrata.compile(f, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(3, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        expected, found = f(x), compiled(again)
        torch.testing.assert_close(found, expected)
        for one, other in zip(_gradients(found, again), _gradients(expected, x), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)
    assert torchstrata.counters["fallbacks"] == 0


def test_a_dispatch_handler_runs_in_eager_mode() -> None:
    """Its frames run below autograd and functionalisation: compiling one there read memory that a
    wrapper does not have.
    """
    x = torch.ones(3)
    assert torch.equal(
        torchstrata.compile(lambda x: (Doubled(x) * 2).held + 1)(x), torch.full((3,), 5.0)
    )


def test_a_hook_is_not_called_by_backward_from_a_write_alone() -> None:
    """The write needs no result of its own: its history reaches the caller through the buffer."""

    def f(x: torch.Tensor, buffer: torch.Tensor, calls: list[int]) -> torch.Tensor:
        buffer.add_(x)
        y = x * 2
        y.register_hook(lambda grad: calls.append(1))
        return y

    for call in (f, torchstrata.compile(f, fullgraph=True)):
        x, buffer, calls = torch.ones(3, requires_grad=True), torch.zeros(3), []
        call(x, buffer, calls)
        buffer.sum().backward()
        assert calls == [] and x.grad is not None and x.grad.tolist() == [1.0] * 3


def test_a_module_hook_on_gradients() -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        norms: list[float] = []
        model[0].register_full_backward_hook(
            lambda module, inputs, outputs: norms.append(round(outputs[0].norm().item(), 4))
        )
        model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
        compiled = wrap(model)
        for _ in range(2):
            compiled(torch.randn(2, 3)).sum().backward()
        return norms, [p.grad for p in model.parameters() if p.grad is not None]

    torchstrata.reset()
    expected, found = (
        run(lambda model: model),
        run(lambda model: torchstrata.compile(model, fullgraph=True)),
    )
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])
