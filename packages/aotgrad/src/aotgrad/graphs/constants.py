"""Small tensors that are known when a graph is compiled."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import torch

from aotgrad.tracing.view_chains import view_source

aten = torch.ops.aten
_SMALL = 64  # elements
_CREATED = frozenset(
    getattr(aten, name).default for name in "full zeros ones scalar_tensor eye arange".split()
) | {aten.arange.start, aten.arange.start_step}


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )


def is_collective(node: torch.fx.Node) -> bool:
    """Whether other processes take part: all of them run it, or none may."""
    return getattr(node.target, "namespace", None) == "_c10d_functional"


class ConstantFolder:
    """Folds ops of one graph whose operands are literals (``torch.tensor([1, 2])``) or small CPU
    tensors made from numbers.
    """

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm
        self._known: dict[torch.fx.Node, torch.Tensor | None] = {}
        self._made: dict[Any, torch.fx.Node] = {}

    def fold(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """A constant that stands for ``node``, added to the graph; None when its value is not known
        or need not be kept.
        """
        if view_source(node, unsafe=True) is not None or not node.all_input_nodes:
            return None
        value = self.value(node)
        if value is None:
            return None
        # the text tells -0.0 from 0.0
        key = (value.dtype, value.shape, value.stride(), str(value.tolist()))
        if key not in self._made:
            with node.graph.inserting_before(node):
                self._made[key] = made = self._filled(node, value) or self._attribute(node, value)
            made.meta |= {**node.meta, "literal": True}
            self._known[made] = value
        return self._made[key]

    def value(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The elements of a node, when they are few and known."""
        if node not in self._known:
            self._known[node] = self._evaluate(node)
        return self._known[node]

    def _evaluate(self, node: torch.fx.Node) -> torch.Tensor | None:
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor) or fake.device.type != "cpu":
            return None
        if any(type(s) is not int for s in fake.shape):
            return None
        if math.prod(fake.shape) > _SMALL or fake.layout is not torch.strided:
            return None
        if node.op == "get_attr":
            if node.meta.get("literal"):
                return operator.attrgetter(str(node.target))(self._gm)
            return None
        target: Any = node.target
        is_call = node.op == "call_function" and isinstance(target, torch._ops.OpOverload)
        if not is_call or is_random(node):
            return None
        is_made = target in _CREATED
        if target.namespace != "aten" or not (is_made or node.all_input_nodes):
            return None
        operands = {a: self.value(a) for a in node.all_input_nodes}
        if any(v is None for v in operands.values()):
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
        with torch.no_grad(), torch._C._DisableAutocast():
            value = target(*args, **kwargs)
        same = (
            value.shape == fake.shape
            and value.stride() == fake.stride()
            and value.dtype is fake.dtype
        )
        return value if same else None

    def _filled(self, node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node | None:
        """``full``, which a kernel takes in without a load, for elements that are all equal."""
        if value.numel() == 0 or not value.is_contiguous() or value.dtype.is_complex:
            return None
        first = value.flatten()[0].item()
        has_negative_zero = first == 0 and bool(torch.signbit(value).any())
        if has_negative_zero or not bool((value == first).all()):
            return None
        arguments = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        return node.graph.call_function(aten.full.default, (list(value.shape), first), arguments)

    def _attribute(self, node: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
        name = next(n for i in itertools.count() if not hasattr(self._gm, n := f"folded_{i}"))
        self._gm.register_buffer(name, value.detach().clone(), persistent=False)
        return node.graph.get_attr(name)
