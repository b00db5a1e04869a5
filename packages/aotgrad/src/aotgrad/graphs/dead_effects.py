"""Effects of dead code that stay: random draws, and errors for an index or address out of range.

Other errors of dead code (a singular matrix, a division by zero) are dropped: docs/semantics.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from symshapes import expr_of

from aotgrad.tracing.functional import extent
from aotgrad.tracing.joint import Joint

from .constants import is_random
from .seeded_random import device_of
from .wrapper_subclasses import has_wrappers

_CHECK_INDICES = frozenset({
    "index", "_unsafe_index", "index_put", "_unsafe_index_put", "gather", "scatter", "scatter_add",
    "scatter_reduce",
    "index_select", "index_add", "index_copy", "index_fill", "index_reduce", "take", "put",
    "embedding", "_embedding_bag",
    "_embedding_bag_forward_only", "nll_loss_forward", "nll_loss2d_forward", "masked_scatter",
})  # fmt: skip

_ASK_FOR_LAYOUT = frozenset({
    "zero", "fill", "copy", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
    "randn_like", "uniform",
    "normal_functional", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
})  # fmt: skip
"""Operators that read no elements of their first operand."""

_WRITE_A_PART = {"slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"}
"""Operators that read their first operand where the second one doesn't replace it."""


def mark_effects(joint: Joint) -> None:
    """Marks dead nodes whose effects stay: they become results that nobody reads.

    Dead draws on a device that the graph does not use move to the call: layer drop draws a number
    on the CPU that no kernel reads, and CUDA graphs only record programs of one device.
    """
    if has_wrappers(joint.gm.graph):
        return
    live = _live(joint)
    drawn = _of_other_devices(
        [n for n in joint.gm.graph.nodes if n not in live and _is_draw(n)], live
    )
    joint.plan = replace(
        joint.plan, eager_draws=tuple((n.target, n.args, dict(n.kwargs)) for n in drawn)
    )
    for node in reversed(joint.gm.graph.nodes):
        if node in drawn:
            continue
        if node.op == "output" or node in live:
            live.update(_read_by(node))
        elif node.op == "call_function" and not node.meta.get("is_backward") and _has_effect(node):
            result = next(
                (n for n in (node, *node.users) if isinstance(n.meta.get("val"), torch.Tensor)),
                None,
            )
            # one of several results keeps the operation, unless another result is read
            if result is not None:
                result.meta["has_effect"] = True
                live.update(_read_by(node))


def kept_effects(joint: Joint) -> list[torch.fx.Node]:
    """The nodes that ``mark_effects`` has marked and nothing reads."""
    live = _live(joint)
    return [n for n in joint.gm.graph.nodes if n.meta.get("has_effect") and n not in live]


def _live(joint: Joint) -> set[torch.fx.Node]:
    live: set[torch.fx.Node] = set()
    for node in reversed(joint.gm.graph.nodes):
        if node.op == "output" or node in live:
            live.update(_read_by(node))
    return live


def _read_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands whose elements a node reads."""
    if not _replaces_first(node):
        return node.all_input_nodes
    return [n for n in node.all_input_nodes if n is not node.args[0] or n in node.args[1:]]


def _replaces_first(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    if name not in _WRITE_A_PART:
        return name in _ASK_FOR_LAYOUT
    whole, part = (expr_of(n.meta["val"].numel()) for n in node.args[:2])  # type: ignore[union-attr]
    return whole == part


def _of_other_devices(draws: list[torch.fx.Node], live: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """Dead draws on devices that the graph does not use. A graph of another device than the CPU
    may have numbers there.
    """
    used = {device_of(node) for node in live} - {None}
    if any(device.type != "cpu" for device in used):  # type: ignore[union-attr]
        used -= {torch.device("cpu")}
    used |= {device_of(node) for node in live if is_random(node)}
    return [n for n in draws if device_of(n) not in used]


def _is_draw(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers and takes no values."""
    return is_random(node) and not node.all_input_nodes and not node.meta.get("is_backward")


def _has_effect(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::")
    if node.target is torch.ops.aten.as_strided.default:
        return _may_leave_memory(node)
    return is_random(node) or (node.target.namespace == "aten" and name in _CHECK_INDICES)


def _may_leave_memory(node: torch.fx.Node) -> bool:
    """Whether ``as_strided`` may show more than the elements that its operand is known to have."""
    made, read = (n.meta["val"] for n in (node, node.all_input_nodes[0]))
    ends = []
    for t in (made, read):
        sizes, strides, offset = t.shape, t.stride(), t.storage_offset()
        if not all(type(n) is int for n in (*sizes, *strides, offset)):
            return True
        ends.append(offset + extent(sizes, strides) if t.numel() else 0)
    return ends[0] > ends[1]
