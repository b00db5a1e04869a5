"""One call, several autograd nodes: results that have nothing in common are differentiated
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Shared:
    """Takes the place of an autograd node in the forward function: what all nodes of a call
    keep.
    """

    __slots__ = ("beside", "materialize_grads", "primals", "sizes", "to_save")

    def hold(self, results: Sequence[torch.Tensor]) -> None:
        """Keeps results without their history: nodes would hold each other through them."""
        if hasattr(self, "to_save"):
            ids = {id(result) for result in results}
            self.to_save = tuple(t.detach() if id(t) in ids else t for t in self.to_save)


def part_of_forward(read: Sequence[int]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The forward function of one node, which keeps those of the saved tensors that its backward
    reads.

    Its box holds what is shared, then the results, which have been computed.
    """

    def function_forward(
        ctx: Any, box: list[Any], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        shared, *results = box
        for name in Shared.__slots__:
            if hasattr(shared, name):
                setattr(ctx, name, getattr(shared, name))
        if hasattr(shared, "to_save"):
            ctx.to_save = tuple(t if k in read else None for k, t in enumerate(shared.to_save))
        if getattr(shared, "beside", None) is not None:
            ctx.beside = shared.beside.only(read)
        return tuple(results)

    return function_forward


def part_of_backward(
    backward: Callable[..., Any], results: Sequence[int], places: Sequence[int], count: int
) -> Callable[..., Any]:
    """The backward function of one node.

    Args:
        backward: that of all results together, which may get None for some.
        results: the places of the node's own results among all ``count``.
        places: where in what ``backward`` returns the gradients of the node's own inputs are.
    """

    def function_backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        given: list[torch.Tensor | None] = [None] * count
        for place, tangent in zip(results, tangents):
            given[place] = tangent
        gradients = backward(ctx, *given)
        return (None, *(gradients[place] for place in places))

    return function_backward
