"""Removes attention masks that fused kernels can do without, and lays out the others so that they
can read them.

Models build masks from ``arange`` while they are captured. A mask that hides nothing is removed,
and one that hides the future becomes ``is_causal``: all kernels support those, while flash
attention takes no mask. The fused CUDA kernels read a mask only if its last dimension is dense;
otherwise torch computes attention in float32.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any

import torch
from symshapes import FakeTensorMode
from torch.overrides import TorchFunctionMode

from .functional import current_value, is_functional
from .symbolic_masks import meaning_of
from .tangent_layout import dense_strides
from .tracer import Tracer

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_BACKWARD = re.compile(r"aten\._scaled_dot_product_\w+_backward\.default")
_MAX_NODES = 200
_MAX_ELEMENTS = 1 << 26  # elements of any value from which a mask is computed, once at compile time


class AttentionMasks(TorchFunctionMode):
    """Gives ``scaled_dot_product_attention`` the cheapest mask of the same meaning while active."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        kwargs |= zip(_PARAMETERS, args)
        mask = kwargs.get("attn_mask")
        if isinstance(mask, torch.Tensor):
            _check_shape(mask, kwargs["query"], kwargs["key"])
        if not is_functional(mask) or mask.requires_grad or kwargs.get("is_causal"):
            return func(**kwargs)
        known = self._known(current_value(mask)) if mask.dtype == torch.bool else None
        if known is not None:
            return func(**kwargs | known)
        if mask.device.type == "cuda" and mask.dim() and mask.stride(-1) != 1:
            # contiguous, as torch's own matrix products return it
            return func(**kwargs | {"attn_mask": mask.contiguous()}).contiguous()
        return func(**kwargs)

    def _known(self, fake: torch.Tensor) -> dict[str, Any] | None:
        """Arguments that replace a mask of bools; None if there are none."""
        nodes = self._nodes_of(fake)
        if nodes is None:
            return meaning_of(self._tracer.node_of(fake))
        return self._tracer.on_real(_same_meaning, nodes)

    def _nodes_of(self, fake: torch.Tensor) -> list[torch.fx.Node] | None:
        """The nodes that compute ``fake``, in order; None if it depends on inputs."""
        wanted: set[torch.fx.Node] = set()
        pending = [self._tracer.node_of(fake)]
        while pending:
            node = pending.pop()
            if node in wanted:
                continue
            if len(wanted) == _MAX_NODES or not _is_pure(node):
                return None
            wanted.add(node)
            pending += node.all_input_nodes
        return [node for node in self._tracer.graph.nodes if node in wanted]


def _check_shape(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
    """Raises eager mode's error for a mask that would broadcast the scores: torch adds it in place,
    except to the tensors of a trace.
    """
    batch = [
        a if not _is_one(a) else b
        for a, b in zip_longest(query.shape[-3::-1], key.shape[-3::-1], fillvalue=1)
    ]
    scores = [*reversed(batch), query.shape[-2], key.shape[-2]]
    grows = any(
        _is_one(size) and not _is_one(wanted)
        for size, wanted in zip(reversed(scores), reversed(mask.shape))
    )
    if mask.dim() > len(scores) or grows:
        added = list(torch.broadcast_shapes(scores, mask.shape))
        raise RuntimeError(f"output with shape {scores} doesn't match the broadcast shape {added}")


def _is_one(size: int | torch.SymInt) -> bool:
    return type(size) is int and size == 1


def _same_meaning(nodes: list[torch.fx.Node]) -> dict[str, Any] | None:
    """Arguments that replace the mask computed by the last node; None if there are none."""
    values: dict[torch.fx.Node, Any] = {}
    for node in nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    mask = values[nodes[-1]]
    if mask.all():
        return {"attn_mask": None}
    if mask.dim() >= 2 and torch.equal(mask, torch.ones_like(mask).tril()):
        return {"attn_mask": None, "is_causal": True}
    return None


def lay_out_tangents(graph: torch.fx.Graph, fake_mode: FakeTensorMode) -> None:
    """Expects each tangent that only attention reads to have the layout of attention's result,
    because eager mode mostly passes it in that layout.

    The result may have been copied to another layout after the call, while its gradient has the
    layout of the original result. cuDNN's backward keeps, for given sizes, the strides of the first
    gradient that it saw (torch 2.11), so other strides give wrong gradients.
    """
    for node in graph.find_nodes(op="placeholder"):
        (call,) = node.users if len(node.users) == 1 else (node,)
        if not _BACKWARD.match(str(call.target)) or call.args[0] is not node:
            continue
        place = [a.name for a in call.target._schema.arguments].index("out")  # type: ignore[union-attr]
        fake, out = node.meta["val"], call.args[place].meta["val"]  # type: ignore[union-attr]
        node.meta["val"] = fake_mode.empty(
            fake.shape, dense_strides(out), dtype=fake.dtype, device=fake.device
        )


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether a node depends on its operands alone and has a known size."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return all(type(size) is int for size in value.shape) and value.numel() <= _MAX_ELEMENTS
