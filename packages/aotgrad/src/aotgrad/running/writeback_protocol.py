"""Optional parts of the backend contract: compiled graphs that write results back (B6), and saved
values handed over as one object (B7).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from aotgrad.graphs.donation import copied
from aotgrad.tracing.view_chains import view_source

if TYPE_CHECKING:
    from aotgrad.effect_plan import Mutation
    from aotgrad.tracing.joint import Joint

keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]
_hooks: Callable[[bool], object] = torch._C._autograd._top_saved_tensors_default_hooks  # type: ignore[attr-defined]
FREED_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or "
    "autograd.grad(). Specify retain_graph=True "
    "if you need to backward through the graph a second time or if you need to access saved "
    "tensors after calling backward."
)
"""Eager's message."""


class PrivateValues(Protocol):
    """Saved values that only backward reads, as one object."""

    def tensors(self) -> list[torch.Tensor]:
        """The values."""
        ...


def is_hooked() -> bool:
    """Whether saved-tensor hooks are active."""
    return _hooks(False) is not None


def save_private(ctx: Any, private: PrivateValues) -> Sequence[torch.Tensor]:
    """Saves private values. Returns what autograd saves: the tensors if hooks are active."""
    ctx.private = () if (hooked := is_hooked()) else private
    return private.tensors() if hooked else ()


def take_private(ctx: Any, hooked: Sequence[torch.Tensor]) -> PrivateValues | list[torch.Tensor]:
    """Private values that backward may overwrite: copies if they are needed again."""
    private = ctx.private
    if private is None:
        raise RuntimeError(FREED_MESSAGE)
    if hooked or keeps_graph():
        return [copied(value) for value in hooked or private.tensors()]
    ctx.private = None
    return private


def private_values(ctx: Any) -> Sequence[torch.Tensor]:
    """The private values, which are not among ``ctx.saved_tensors``."""
    private = getattr(ctx, "private", ())
    if private is None:
        raise RuntimeError(FREED_MESSAGE)
    return private.tensors() if private else ()


def saved_values(ctx: Any, first: int, count: int) -> Sequence[torch.Tensor]:
    """Everything that is saved: ``first`` tensors by autograd, then ``count`` private ones."""
    saved = ctx.saved_tensors
    return (*saved[:first], *(private_values(ctx) or saved[-count:])) if count else saved


def write_backs(joint: Joint, results: Sequence[torch.fx.Node]) -> tuple[tuple[int, int], ...]:
    """Write-backs that are plain copies: (input, index in ``results``)."""
    if joint.plan.assertions:  # they run before anything is written
        return ()
    index = {node: i for i, node in enumerate(results)}
    pairs = []
    for m in joint.plan.mutations:
        if m.slot is None or m.layout is not None or m.differentiable or m.target.index < 0:
            continue
        result = index.get(joint.values[m.slot.index])
        if result is not None:
            pairs.append((m.target.index, result))
    return tuple(pairs)


def may_be_resized(joint: Joint) -> list[Mutation]:
    """Writes whose size only the call knows.

    An operator that writes several arguments returns their new values, whose sizes may depend on
    data. If a size differs from the input's, the call runs again eagerly; no input has changed yet.
    """
    values = joint.values
    return [
        m
        for m in joint.plan.mutations
        if m.slot is not None and m.layout is None and _is_one_of_several(values[m.slot.index])
    ]


def _is_one_of_several(value: Any) -> bool:
    """Whether a value is one of several results of an operator. Items of a list (foreach) don't
    count: each has its operand's size.
    """
    producer = value.args[0] if getattr(value, "target", None) is operator.getitem else None
    schema = getattr(getattr(producer, "target", None), "_schema", None)
    return schema is not None and len(schema.returns) > 1


def only_written(
    joint: Joint, pairs: Sequence[tuple[int, int]], results: Sequence[torch.fx.Node]
) -> frozenset[int]:
    """Indices in ``results`` that only backward may read once ``pairs`` are written back."""
    plan, written = joint.plan, {target for target, _ in pairs}
    read = plan.returned_slots | {*plan.differentiable}
    read |= {
        m.slot.index for m in plan.mutations if m.slot is not None and m.target.index not in written
    }
    nodes = {joint.values[index] for index in read}
    return frozenset(
        i for _, i in pairs if results[i] not in nodes and view_source(results[i]) is None
    )
