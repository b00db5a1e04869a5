"""Gradients of a loss that forward computes for a tangent of 1, and backward multiplies by the
tangent.

Backward is linear in its tangents. Where the only one is a number, as a loss's is, and the
gradients are no larger than what backward would have to be handed, forward hands over the gradients
themselves: it has their operands at hand, and a backend need not touch them where the tangent is 1.
"""

from __future__ import annotations

import torch
from symshapes import is_wrapper
from symshapes.choices import decide

from aotgrad.tracing.joint import Joint

from .cost import Recompute, is_product, recompute_class, size_in_bytes
from .partition import Partition, report
from .split import JointAnalysis

aten = torch.ops.aten
SMALLEST = 1 << 20
"""Bytes of gradients below which nothing is gained."""
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
"""The range of float16 is too small: losses are scaled by their tangents, so that gradients fit."""


def with_unit_gradients(
    view: JointAnalysis, partition: Partition
) -> tuple[JointAnalysis, Partition]:
    """``view`` and ``partition``; those of the graph with unit gradients if that saves no more
    bytes.
    """
    gradients = list(
        dict.fromkeys(
            g for g in view.gradients if isinstance(g, torch.fx.Node) and g in view.from_tangent
        )
    )
    if not _pays(view, gradients, partition.saved_bytes):
        return view, partition
    _scale(view.joint, view, gradients)
    view = JointAnalysis.of(view.joint)
    return view, report(view, gradients, "unit gradients")


def _pays(view: JointAnalysis, gradients: list[torch.fx.Node], saved_bytes: int) -> bool:
    tangents = [t for t in view.joint.tangents if t in view.needed]
    if len(tangents) != 1 or view.interior or not _is_loss(tangents[0].meta["val"]):
        return False
    values = [g.meta["val"] for g in gradients]
    if any(is_wrapper(v) for v in values) or not all(map(view.can_save, gradients)):
        return False
    if not all(v.dtype in DTYPES and v.dim() for v in values):
        return False
    backward = [n for n in view.from_tangent & view.needed if n.op == "call_function"]
    if any(is_product(n) or recompute_class(n) is Recompute.NEVER for n in backward):
        return False
    pays = SMALLEST <= sum(map(size_in_bytes, values)) <= saved_bytes
    return decide("unit gradients", "loss", pays)


def _is_loss(value: torch.Tensor) -> bool:
    return value.dim() == 0 and value.dtype in DTYPES


def _scale(joint: Joint, view: JointAnalysis, gradients: list[torch.fx.Node]) -> None:
    """Computes the gradients from a tangent of 1, and multiplies them by the tangent."""
    graph = joint.gm.graph
    (tangent,) = (t for t in joint.tangents if t in view.needed)
    value = tangent.meta["val"]
    with graph.inserting_after(joint.tangents[-1]):
        one = graph.call_function(
            aten.full.default, ([], 1), {"dtype": value.dtype, "device": value.device}
        )
    one.meta = {"val": value, "is_backward": True}
    tangent.replace_all_uses_with(one)
    for node in view.from_tangent:
        node.meta.pop("position", None)  # it no longer stands for what eager computes there
    output = graph.output_node()
    scaled: dict[torch.fx.Node, torch.fx.Node] = {}
    with graph.inserting_before(output):
        for gradient in gradients:
            node = scaled[gradient] = graph.call_function(aten.mul.Tensor, (gradient, tangent))
            inherited = [k for k in ("val", "stack_trace", "forward_node") if k in gradient.meta]
            node.meta = {k: gradient.meta[k] for k in inherited} | {"is_backward": True}
    values = output.args[0]
    assert isinstance(values, tuple | list)
    outputs = [*values[: joint.num_values]]
    outputs += [scaled.get(g, g) for g in values[joint.num_values :]]  # type: ignore[arg-type]
    output.args = (tuple(outputs),)
