"""Several calls of one backward: autograd frees saved tensors after the first call, but later calls
need some of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from .writeback_protocol import FREED_MESSAGE, is_hooked, keeps_graph, private_values

Gradients = tuple[torch.Tensor | None, ...]
# eager's messages
_MODIFIED_MESSAGE = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
_HINT = (
    "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
    "with torch.autograd.set_detect_anomaly(True, check_nan=False)."
)


class SavedVersions:
    """The saved tensors with their versions, and the tangents that need each of them.

    Autograd itself checks all saved tensors, even those that no given tangent needs.

    Args:
        readers: for each tensor, the bits of the tangents whose gradients are computed from it.
        tensors: the saved tensors. Results are detached: otherwise the node would reference itself.
    """

    __slots__ = ("readers", "tensors", "versions")

    def __init__(self, readers: Sequence[int], tensors: Sequence[torch.Tensor | None]) -> None:
        self.readers = readers
        self.tensors = tensors
        self.versions = [None if t is None else t._version for t in tensors]

    def only(self, indices: Container[int]) -> SavedVersions:
        """The versions for an autograd node that saves some of the tensors."""
        tensors = [t if i in indices else None for i, t in enumerate(self.tensors)]
        return SavedVersions(self.readers, tensors)

    def modified(self, tangents: Sequence[torch.Tensor | None]) -> str:
        """Describes a written tensor that the gradients of these tangents need; empty if none."""
        given = sum(1 << bit for bit, tangent in enumerate(tangents) if tangent is not None)
        for tensor, version, readers in zip(self.tensors, self.versions, self.readers):
            if tensor is not None and readers & given and tensor._version != version:
                return (
                    f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                    f"expected version {version}"
                )
        return ""


def record_versions(
    readers: Sequence[int], tensors: Sequence[torch.Tensor]
) -> SavedVersions | None:
    """The versions of the saved tensors; None if hooks may replace them."""
    if is_hooked() or any(t.is_inference() for t in tensors):
        return None
    return SavedVersions(readers, tensors)


def read_saved(ctx: Any, tangents: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """``ctx.saved_tensors``; raises RuntimeError if one that these tangents need was modified."""
    versions: SavedVersions | None = getattr(ctx, "saved_versions", None)
    try:
        saved = ctx.saved_tensors
    except RuntimeError as error:
        if versions is None or _MODIFIED_MESSAGE not in str(error) or versions.modified(tangents):
            raise
        saved = versions.tensors
    if versions is not None and not keeps_graph():
        ctx.saved_versions = None  # freed like the saved tensors
    return saved


class RetainedContext:
    """Stands in for ``ctx`` in several calls of backward; each call gets a copy of its own."""

    def __init__(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> None:
        versions: SavedVersions | None = getattr(ctx, "saved_versions", None)
        saved = (*read_saved(ctx, tangents), *private_values(ctx))
        # detach results: they reference ctx
        self.saved_tensors = tuple(
            t.detach() if t is not None and t.grad_fn is ctx else t for t in saved
        )
        self.versions = versions or SavedVersions([-1] * len(saved), self.saved_tensors)
        self.private = ()
        self.primals = getattr(ctx, "primals", None)
        self.sizes = getattr(ctx, "sizes", None)
        if not keeps_graph():
            ctx.private = ctx.primals = None

    def maybe_clear_saved_tensors(self) -> None:
        """Does nothing: the next call needs the saved tensors."""


def callable_in_parts(
    backward: Callable[..., Gradients], freed_with: Sequence[int]
) -> Callable[..., Gradients]:
    """``backward`` that can be called for some tangents first and for others later.

    ``freed_with``: see ``Joint``; a call for one tangent frees the values of those tangents, too.
    """
    everything = (1 << len(freed_with)) - 1

    def function_backward(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        freed, retained = getattr(ctx, "partial_state", (0, None))
        given = [bit for bit, tangent in enumerate(tangents) if tangent is not None]
        if any(freed >> bit & 1 for bit in given):
            raise RuntimeError(FREED_MESSAGE)
        if retained is not None and (what := retained.versions.modified(tangents)):
            raise RuntimeError(f"{_MODIFIED_MESSAGE}: {what} instead. {_HINT}")
        if not keeps_graph():
            for bit in given:
                freed |= freed_with[bit]
            if retained is None and freed != everything:
                retained = RetainedContext(ctx, tangents)
            if retained is not None:
                ctx.partial_state = freed, None if freed == everything else retained
        return backward(ctx if retained is None else copy.copy(retained), *tangents)

    return function_backward
