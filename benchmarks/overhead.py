"""What a compiled call costs beyond eager: guards, graph call, host program, autograd runtime."""

from __future__ import annotations

from typing import Any

import torch
import torchstrata

from benchmarks.measure import alternate


def _added(result: dict[str, float]) -> dict[str, float]:
    return {
        f"{name} adds us": round(1e6 * (seconds - result["eager"]), 2) for name, seconds in result.items() if name != "eager"
    }


def add_with_eager_backend() -> dict[str, Any]:
    """``x + y`` on two 2-element tensors through each capture with the eager backend."""
    x, y = torch.ones(2), torch.ones(2)

    def add(x, y):
        return x + y

    ours, incumbent = torchstrata.compile(add, backend="eager"), torch.compile(add, backend="eager")
    return _added(alternate({"eager": lambda: add(x, y), "ours": lambda: ours(x, y), "torch.compile": lambda: incumbent(x, y)}))


def increment_with_full_stack() -> dict[str, Any]:
    """``x + 1`` through the whole stack, inference."""
    x = torch.ones(8)

    def increment(x):
        return x + 1

    ours, incumbent = torchstrata.compile(increment), torch.compile(increment)
    return _added(alternate({"eager": lambda: increment(x), "ours": lambda: ours(x), "torch.compile": lambda: incumbent(x)}))


def ten_kernels() -> dict[str, Any]:
    """Ten tensors of unlike sizes plus one, which no loop does together; next to eager's ten calls."""
    inputs = [torch.ones(8 + size) for size in range(10)]

    def increments(*inputs):
        return [x + 1 for x in inputs]

    ours, incumbent = torchstrata.compile(increments), torch.compile(increments)
    calls = {"eager": increments, "ours": ours, "torch.compile": incumbent}
    return _added(alternate({name: (lambda call=call: call(*inputs)) for name, call in calls.items()}))


def increment_training() -> dict[str, Any]:
    """``x + 1`` requiring grad, forward only, through the whole stack."""
    x = torch.ones(8, requires_grad=True)

    def increment(x):
        return x + 1

    ours, incumbent = torchstrata.compile(increment), torch.compile(increment)
    return _added(alternate({"eager": lambda: increment(x), "ours": lambda: ours(x), "torch.compile": lambda: incumbent(x)}))


def module_of_200() -> dict[str, Any]:
    """A chain of 200 modules with 400 parameters, eager backend."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(200)])
    x = torch.ones(1, 2)
    ours, incumbent = torchstrata.compile(model, backend="eager"), torch.compile(model, backend="eager")
    with torch.no_grad():
        return _added(alternate({"eager": lambda: model(x), "ours": lambda: ours(x), "torch.compile": lambda: incumbent(x)}))


CASES = [add_with_eager_backend, increment_with_full_stack, ten_kernels, increment_training, module_of_200]
