"""Comparing values, gradients and graph counts of an eager run with a captured one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import bytecode_dynamo as bd
import pytest
import torch
from torch.utils import _pytree as pytree


def gradients(result: Any, arguments: Any, parameters: list[torch.Tensor]) -> list[Any]:
    """Backward from a weighted sum of all results; the gradients of arguments and parameters."""
    outs = [
        t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    leaves = [
        t
        for t in pytree.tree_leaves(arguments)
        if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad
    ]
    if outs:
        weights = [torch.linspace(1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in outs]
        torch.autograd.backward(outs, weights)
    return [None if t.grad is None else t.grad.clone() for t in (*leaves, *parameters)]


@pytest.fixture
def check_gradients(alike: Callable[[Any, Any], bool]) -> Callable[..., None]:
    """``check_gradients(f, make_args, module=None, breaks=0)``: results, arguments and gradients of
    two calls equal eager's, with one graph and no break (or with ``breaks``).
    """

    def run(
        f: Callable[..., Any],
        make: Callable[[], tuple[Any, ...]],
        module: Any = None,
        breaks: int = 0,
    ) -> None:
        parameters = [] if module is None else list(module.parameters())
        state = None if module is None else copy.deepcopy(module.state_dict())
        found: list[list[Any]] = []
        for call in (f, bd.optimize("eager")(f)):
            if module is not None:
                module.load_state_dict(state)
            runs = []
            for _ in range(2):
                torch.manual_seed(0)
                arguments = make()
                for parameter in parameters:
                    parameter.grad = None
                result = call(*arguments)
                grads = gradients(result, arguments, parameters)
                result = pytree.tree_map(
                    lambda value: value.detach() if isinstance(value, torch.Tensor) else value,
                    result,
                )
                runs.append((result, arguments, grads))
            found.append(runs)
        assert alike(*found)
        assert bd.counters["graph_breaks"] == breaks
        if not breaks:
            assert bd.counters["graphs"] == 1

    return run
