"""What a compiled call costs beyond eager: guards, graph call, host program, autograd runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchstrata

from benchmarks.measure import alternate


def _added(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> dict[str, float]:
    """Microseconds that each compiler's call of ``function`` takes beyond eager's."""
    calls = {
        "eager": function,
        "ours": torchstrata.compile(function, **options),
        "torch.compile": torch.compile(function, **options),
    }
    seconds = alternate({name: partial(call, *inputs) for name, call in calls.items()})
    eager = seconds.pop("eager")
    return {f"{name} adds us": round(1e6 * (each - eager), 2) for name, each in seconds.items()}


def add_with_eager_backend() -> dict[str, Any]:
    """``x + y`` on two 2-element tensors through each capture with the eager backend."""
    return _added(lambda x, y: x + y, torch.ones(2), torch.ones(2), backend="eager")


def increment_with_full_stack() -> dict[str, Any]:
    """``x + 1`` through the whole stack, inference."""
    return _added(lambda x: x + 1, torch.ones(8))


def ten_kernels() -> dict[str, Any]:
    """Ten tensors of unlike sizes plus one, which no loop does together; next to eager's ten
    calls.
    """
    return _added(
        lambda *inputs: [x + 1 for x in inputs], *(torch.ones(8 + size) for size in range(10))
    )


def increment_training() -> dict[str, Any]:
    """``x + 1`` requiring grad, forward only, through the whole stack."""
    return _added(lambda x: x + 1, torch.ones(8, requires_grad=True))


def module_of_200() -> dict[str, Any]:
    """A chain of 200 modules with 400 parameters, eager backend."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(200)])
    with torch.no_grad():
        return _added(model, torch.ones(1, 2), backend="eager")


CASES = [
    add_with_eager_backend,
    increment_with_full_stack,
    ten_kernels,
    increment_training,
    module_of_200,
]
