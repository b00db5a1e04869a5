"""Chooses channels-last for the training of convolution nets on CUDA devices, before the graph is
split into forward and backward.

The tensors saved for backward then have the layout in which both graphs convolve them; otherwise
the library would transpose every image and gradient. Rows of channels also stay contiguous where
images become sequences (``flatten(2).transpose(1, 2)``) or are normalised at each position.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from symshapes import LazyGraphModule
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from loopir.ir.nest import leaves

from .layout import FOLLOWERS, prefers_channels_last
from .match import add_call, has_format, is_pure, meta_of, name_of

aten = torch.ops.aten
OPERANDS = {"convolution": (0, 1), "convolution_backward": (0, 1, 2)}
"""The positions of the images and the weight among a call's arguments. The weight is included
because the library would also transpose it, more slowly.
"""
BACKWARD = {
    "native_batch_norm_backward", "native_group_norm_backward", "max_pool2d_with_indices_backward",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward", "upsample_nearest2d_backward", "upsample_bilinear2d_backward",
    "convolution",
    "convolution_backward",
}  # fmt: skip
VIEWS = set(
    "view _unsafe_view permute transpose slice select expand squeeze unsqueeze split detach".split()
)
REDUCTIONS = {"sum", "mean", "amax", "var", "var_mean"}
NAMES = FOLLOWERS | BACKWARD | VIEWS | REDUCTIONS


def lay_out_images(gm: fx.GraphModule) -> fx.GraphModule | None:
    """Returns a copy of a functional graph with channels-last convolutions and channels-last
    results of what follows them; the outputs keep their strides. None if nothing changes.
    """
    if not any(
        name_of(node) == "convolution_backward" and _is_wanted(node) for node in gm.graph.nodes
    ):
        return None
    return _Layouts(gm).run()


def _is_wanted(node: fx.Node) -> bool:
    """Whether a convolution or its gradient runs faster in channels-last."""
    image, weight = node.args[:2] if name_of(node) == "convolution" else node.args[1:3]
    meta = meta_of(image)
    return (
        meta is not None
        and meta.device.type == "cuda"
        and prefers_channels_last(node, image, weight, False)
    )


def _keeps_layouts(node: fx.Node) -> bool:
    """Whether a call is as fast with another layout of its operands."""
    pointwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
    return pointwise or name_of(node) in NAMES or node.target is operator.getitem


class _Layouts:
    """Copies a graph node by node; ``made`` maps old nodes to new ones, ``before`` maps new nodes
    whose layout changed to the old ones.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.before: dict[fx.Node, fx.Node] = {}
        self.copies: dict[tuple[fx.Node, torch.memory_format], fx.Node] = {}

    def run(self) -> fx.GraphModule | None:
        for node in self.gm.graph.nodes:
            if node.op == "output":
                if not self._finish(node):
                    return None
            elif not self._take(node):
                return None
        made = LazyGraphModule(self.gm, self.graph, self.gm.__class__.__name__)
        made.meta.update(self.gm.meta)
        return made

    def _take(self, node: fx.Node) -> bool:
        new = self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
        moved = any(operand in self.before for operand in new.all_input_nodes)
        if name_of(node) in OPERANDS and _is_wanted(node):
            new.args = tuple(
                self._in_format(arg, torch.channels_last, new)
                if i in OPERANDS[name_of(node)]
                else arg
                for i, arg in enumerate(new.args)
            )
            moved = True
        if moved and not (_keeps_layouts(node) and self._follows(node, new)):
            new.args = map_arg(new.args, lambda x: self._back(x, new))  # type: ignore[assignment]
            new.kwargs = map_arg(new.kwargs, lambda x: self._back(x, new))  # type: ignore[assignment]
            return not any(
                operand in self.before for operand in new.all_input_nodes
            ) or self._follows(node, new)
        return True

    def _follows(self, node: fx.Node, new: fx.Node) -> bool:
        """Computes the metadata of a new node from its operands; False if the node can't have
        operands with this layout.
        """
        target: Any = node.target
        if target is operator.getitem:
            value = new.args[0].meta["val"][new.args[1]]  # type: ignore[union-attr, index]
        elif (
            not isinstance(target, OpOverload)
            or not is_pure(target)
            or name_of(node) == "as_strided"
        ):
            return False
        else:
            given = map_arg((new.args, new.kwargs), lambda x: x.meta["val"])
            try:
                with _mode_of(new):
                    value = target(*given[0], **given[1])
            except (RuntimeError, ValueError):  # this layout doesn't allow the view
                return False
        if _layouts(value) != _layouts(node.meta["val"]):
            new.meta = {**node.meta, "val": value}
            self.before[new] = node
        return True

    def _in_format(self, x: Any, memory_format: torch.memory_format, new: fx.Node) -> Any:
        meta = meta_of(x)
        if meta is None or has_format(meta, memory_format):
            return x
        key = (x, memory_format)
        if key not in self.copies:
            value = x.meta["val"]
            with _mode_of(x):
                copied = value.clone(memory_format=memory_format)
            after = add_call(
                new, aten.clone.default, (x,), copied, {"memory_format": memory_format}
            )
            self.copies[key] = after
            if memory_format is torch.channels_last:
                self.before[after] = self.before.get(x) or x
        return self.copies[key]

    def _back(self, x: fx.Node, new: fx.Node) -> fx.Node:
        """``x`` in the layout of the old graph, if that was a contiguous tensor; else ``x``."""
        old = meta_of(self.before[x]) if x in self.before else None
        if old is None or not has_format(old, torch.contiguous_format):
            return x
        return self._in_format(x, torch.contiguous_format, new)

    def _finish(self, node: fx.Node) -> bool:
        new = self.graph.node_copy(node, self.made.__getitem__)
        new.args = map_arg(new.args, lambda x: self._back(x, new))
        return not any(operand in self.before for operand in new.all_input_nodes)


def _mode_of(node: fx.Node) -> Any:
    """The fake mode of the values of a node and its operands."""
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    return next(value.fake_mode for value in leaves(values) if hasattr(value, "fake_mode"))


def _layouts(value: Any) -> list[Any]:
    """The strides of each tensor in a result, except those of dims of size 1."""
    return [
        [
            step
            for size, step in zip(item.shape, item.stride())
            if not isinstance(size, int) or size != 1
        ]
        for item in leaves(value)
        if isinstance(item, torch.Tensor)
    ]
