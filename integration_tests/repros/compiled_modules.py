"""Modules, a backend that counts, and a check, for tests of compiled modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

X = torch.linspace(-1, 1, 4)


class Backend:
    """Runs graphs as they are and counts calls of them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            self.calls += 1
            return graph(*values)

        return run


class Scale(torch.nn.Module):
    """Scales."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([factor]))
        self.register_buffer("steps", torch.zeros(1))
        self.calls = 0

    def forward(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
        """Scale ``x``."""
        self.calls += 1
        return x * self.weight * k

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))


class Shift(Scale):
    def forward(self, x: torch.Tensor, k: int = 1) -> torch.Tensor:
        return x + self.weight


def runs(backend: Backend, compiled: Any, expected: torch.Tensor, *arguments: Any) -> None:
    """Check a call and that a graph computed it, also through ``forward``."""
    for call in (compiled, compiled.forward):
        before = backend.calls
        torch.testing.assert_close(call(*(arguments or (X,))), expected)
        assert backend.calls > before
