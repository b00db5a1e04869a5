"""Hooks on one of several results of a graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

Hook = Callable[[torch.Tensor], Any]


class ResultHooks(OrderedDict[int, Hook]):
    """Hooks that are not called when no gradient arrives at their tensor.

    In eager mode each result has an autograd node of its own. Those of a compiled graph share one,
    which also runs when only other results go backward; autograd then calls the hooks on this one
    with None.
    """

    def __setitem__(self, key: int, hook: Hook) -> None:
        super().__setitem__(key, lambda grad: None if grad is None else hook(grad))


def watch_hooks(results: Sequence[torch.Tensor]) -> None:
    """Lets hooks on the results of one autograd node be called with gradients only."""
    for result in results:
        if (node := result.grad_fn) is not None:
            result._backward_hooks = ResultHooks()
            node._register_hook_dict(result)
