"""Several calls of a backward whose graph is not kept: what the first one has freed for autograd stays for the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .offers import FREED, keeps_graph, saved_beside

Gradients = tuple[torch.Tensor | None, ...]
# what eager mode says
_MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"
_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)


class Retained:
    """Stands for the context of an autograd function in calls of its backward; copies of it are used up by one each."""

    def __init__(self, ctx: Any) -> None:
        self.saved_tensors = (*ctx.saved_tensors, *saved_beside(ctx))
        self.kept = ()
        self.primals = getattr(ctx, "primals", None)
        self.sizes = getattr(ctx, "sizes", None)
        if not keeps_graph():
            ctx.kept = ctx.primals = None

    def maybe_clear_saved_tensors(self) -> None:
        """The next call needs them."""


def in_parts(backward: Callable[..., Gradients], together: Sequence[int]) -> Callable[..., Gradients]:
    """``backward`` that may be called for some of its tangents and then for others.

    ``together`` has for each tangent a bit for each one that it frees values of: nothing is left to hand on for those.
    """
    everything = (1 << len(together)) - 1

    def function_backward(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        freed, rest, versions = getattr(ctx, "parts", (0, None, ()))
        given = [bit for bit, tangent in enumerate(tangents) if tangent is not None]
        if any(freed >> bit & 1 for bit in given):
            raise RuntimeError(FREED)
        for tensor, version in zip(() if rest is None else rest.saved_tensors, versions):
            if tensor._version != version:
                what = f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version}"
                raise RuntimeError(f"{_MODIFIED}: {what} instead. {_HINT}")
        if not keeps_graph():
            for bit in given:
                freed |= together[bit]
            if rest is None and freed != everything:
                rest = Retained(ctx)
                # a result of the call would hold what holds it
                rest.saved_tensors = tuple(t.detach() if t.grad_fn is ctx else t for t in rest.saved_tensors)
            if rest is not None:
                left = None if freed == everything else rest
                ctx.parts = freed, left, tuple(t._version for t in rest.saved_tensors)
        return backward(ctx if rest is None else copy.copy(rest), *tangents)

    return function_backward
