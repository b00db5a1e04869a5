"""What a compiled graph may do beyond its contract: write results back itself (B6), keep saved
values as one object (B7).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from aotgrad.effect_plan import Mutation, Slot, View
from aotgrad.graphs.donation import copied
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.view_chains import view_source

keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]
_hooks: Callable[[bool], object] = torch._C._autograd._top_saved_tensors_default_hooks  # type: ignore[attr-defined]
FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or "
    "autograd.grad(). Specify retain_graph=True "
    "if you need to backward through the graph a second time or if you need to access saved "
    "tensors after calling backward."
)
"""What eager mode says."""


class Kept(Protocol):
    """Saved values that only backward reads, as one object."""

    def tensors(self) -> list[torch.Tensor]:
        """The values."""
        ...


def is_hooked() -> bool:
    """Whether hooks see what autograd saves."""
    return _hooks(False) is not None


def save_kept(ctx: Any, kept: Kept) -> Sequence[torch.Tensor]:
    """Keeps values for backward; what autograd has to save: the values themselves where hooks want
    to see them.
    """
    ctx.kept = () if (hooked := is_hooked()) else kept
    return kept.tensors() if hooked else ()


def take_kept(ctx: Any, hooked: Sequence[torch.Tensor]) -> Kept | list[torch.Tensor]:
    """What backward may overwrite: the values, freed, or copies where somebody needs them again."""
    kept = ctx.kept
    if kept is None:
        raise RuntimeError(FREED)
    if hooked or keeps_graph():
        return [copied(value) for value in hooked or kept.tensors()]
    ctx.kept = None
    return kept


def saved_beside(ctx: Any) -> Sequence[torch.Tensor]:
    """What is kept and not among ``ctx.saved_tensors``."""
    kept = getattr(ctx, "kept", ())
    if kept is None:
        raise RuntimeError(FREED)
    return kept.tensors() if kept else ()


def saved_values(ctx: Any, first: int, count: int) -> Sequence[torch.Tensor]:
    """All that is saved: ``first`` tensors as autograd does, then ``count`` as :func:`save_kept`
    does.
    """
    saved = ctx.saved_tensors
    return (*saved[:first], *(saved_beside(ctx) or saved[-count:])) if count else saved


def write_backs(joint: Joint, results: Sequence[torch.fx.Node]) -> tuple[tuple[int, int], ...]:
    """Write-backs that are copies and nothing else: (input, position among ``results``)."""
    if joint.plan.assertions:  # they come before anything is written
        return ()
    place = {node: i for i, node in enumerate(results)}
    values: Any = joint.gm.graph.output_node().args[0]
    pairs = []
    for m in joint.plan.mutations:
        if m.slot is None or m.layout is not None or m.differentiable or m.target.index < 0:
            continue
        position = place.get(values[m.slot.index])
        if position is not None:
            pairs.append((m.target.index, position))
    return tuple(pairs)


def may_be_resized(joint: Joint) -> list[Mutation]:
    """Writes of which only a call knows the size: an operator that writes several arguments returns
    their new values, and may have resized them, as data says. A call that finds another size runs
    anew, with the inputs as they were.
    """
    values: Any = joint.gm.graph.output_node().args[0]
    kept = [m for m in joint.plan.mutations if m.slot is not None and m.layout is None]
    return [m for m in kept if m.slot is not None and _is_one_of_several(values[m.slot.index])]


def _is_one_of_several(value: Any) -> bool:
    """Whether it is one result of an operator that returns several; one of a list (foreach) has its
    operand's size.
    """
    maker = value.args[0] if getattr(value, "target", None) is operator.getitem else None
    schema = getattr(getattr(maker, "target", None), "_schema", None)
    return schema is not None and len(schema.returns) > 1


def only_written(
    joint: Joint, pairs: Sequence[tuple[int, int]], results: Sequence[torch.fx.Node]
) -> frozenset[int]:
    """Positions among ``results`` that only backward may read once ``pairs`` were written back."""
    plan, written = joint.plan, {target for target, _ in pairs}
    bases = (o.base if isinstance(o, View) else o for o in plan.outputs)
    read = {o.index for o in bases if isinstance(o, Slot)} | {*plan.differentiable}
    read |= {
        m.slot.index for m in plan.mutations if m.slot is not None and m.target.index not in written
    }
    values: Any = joint.gm.graph.output_node().args[0]
    nodes = {values[index] for index in read}
    return frozenset(
        i for _, i in pairs if results[i] not in nodes and view_source(results[i]) is None
    )
