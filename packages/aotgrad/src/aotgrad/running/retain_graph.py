"""Several calls of a backward whose graph is not kept: what the first one has freed for autograd
stays for the next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from .writeback_protocol import FREED, is_hooked, keeps_graph, saved_beside

Gradients = tuple[torch.Tensor | None, ...]
# what eager mode says
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
    "with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)


class Beside:
    """The tensors that autograd has saved, which it checks all together, and the tangents that need
    them.

    Args:
        read_by: for each of them a bit for each tangent whose gradients are computed from it.
        tensors: those tensors; results of the call without their history, or the node would hold
            itself.
    """

    __slots__ = ("read_by", "tensors", "versions")

    def __init__(self, read_by: Sequence[int], tensors: Sequence[torch.Tensor | None]) -> None:
        self.read_by = read_by
        self.tensors = tensors
        self.versions = [None if t is None else t._version for t in tensors]

    def only(self, places: Container[int]) -> Beside:
        """That of an autograd node which saves some of the tensors."""
        return Beside(
            self.read_by, [t if place in places else None for place, t in enumerate(self.tensors)]
        )

    def modified(self, tangents: Sequence[torch.Tensor | None]) -> str:
        """What somebody has written to although the gradients from these tangents need it; nothing
        if there is no such.
        """
        given = sum(1 << bit for bit, tangent in enumerate(tangents) if tangent is not None)
        for tensor, version, readers in zip(self.tensors, self.versions, self.read_by):
            if tensor is not None and readers & given and tensor._version != version:
                return (
                    f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                    f"expected version {version}"
                )
        return ""


def beside(read_by: Sequence[int], tensors: Sequence[torch.Tensor]) -> Beside | None:
    """What is kept beside what autograd saves; nothing where hooks put that somewhere else."""
    if is_hooked() or any(t.is_inference() for t in tensors):
        return None
    return Beside(read_by, tensors)


def read_saved(ctx: Any, tangents: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """What autograd has saved. Raises RuntimeError if somebody has written to what these tangents
    need of it.
    """
    kept: Beside | None = getattr(ctx, "beside", None)
    try:
        found = ctx.saved_tensors
    except RuntimeError as error:
        if kept is None or _MODIFIED not in str(error) or kept.modified(tangents):
            raise
        found = kept.tensors
    if kept is not None and not keeps_graph():
        ctx.beside = None  # as free as what is saved
    return found


class Retained:
    """Stands for the context of an autograd function in calls of its backward; copies of it are
    used up by one each.
    """

    def __init__(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> None:
        kept: Beside | None = getattr(ctx, "beside", None)
        saved = read_saved(ctx, tangents)
        others = saved_beside(ctx)
        # a result of the call would hold what holds it
        self.saved_tensors = tuple(
            t.detach() if t is not None and t.grad_fn is ctx else t for t in (*saved, *others)
        )
        self.checked = kept or Beside([-1] * len(self.saved_tensors), self.saved_tensors)
        self.kept = ()
        self.primals = getattr(ctx, "primals", None)
        self.sizes = getattr(ctx, "sizes", None)
        if not keeps_graph():
            ctx.kept = ctx.primals = None

    def maybe_clear_saved_tensors(self) -> None:
        """The next call needs them."""


def in_parts(
    backward: Callable[..., Gradients], together: Sequence[int]
) -> Callable[..., Gradients]:
    """``backward`` that may be called for some of its tangents and then for others.

    ``together`` has for each tangent a bit for each one that it frees values of: nothing is left to
    hand on for those.
    """
    everything = (1 << len(together)) - 1

    def function_backward(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        freed, rest = getattr(ctx, "parts", (0, None))
        given = [bit for bit, tangent in enumerate(tangents) if tangent is not None]
        if any(freed >> bit & 1 for bit in given):
            raise RuntimeError(FREED)
        if rest is not None and (what := rest.checked.modified(tangents)):
            raise RuntimeError(f"{_MODIFIED}: {what} instead. {_HINT}")
        if not keeps_graph():
            for bit in given:
                freed |= together[bit]
            if rest is None and freed != everything:
                rest = Retained(ctx, tangents)
            if rest is not None:
                ctx.parts = freed, None if freed == everything else rest
        return backward(ctx if rest is None else copy.copy(rest), *tangents)

    return function_backward
