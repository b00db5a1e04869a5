"""A tracer for tests: records the ATen calls of a function on real tensors as a C2 graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from primops.builder import map_values
from primops.meta import TensorMeta

RENAMED = {
    ("aten::bernoulli_", "float"): "p",
    ("aten::transpose_", "default"): "int",
    ("aten::pow_", "Scalar"): "Tensor_Scalar",
}
ALIASES = ("aten::detach", "aten::lift_fresh")


def trace(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """The functional graph of ``function(*inputs)``, with the values of this run in ``meta["val"]``.

    In-place calls become their functional variant; writes through views are not followed. Tensors that are neither inputs nor
    computed become constants. The function returns a tensor or a flat tuple of tensors.
    """
    recorder = _Recorder()
    for position, value in enumerate(inputs):
        node = recorder.graph.placeholder(f"in{position}")
        recorder.name(node, value)
    with recorder:
        result = function(*inputs)
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    recorder.graph.output(tuple(recorder.node_of(value) for value in outputs))
    return fx.GraphModule(recorder.root, recorder.graph)


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []

    def name(self, node: fx.Node, value: Any) -> None:
        """Makes ``node`` stand for ``value`` from here on."""
        node.meta["val"] = map_values(_snapshot, value)
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self.alive.append(value)

    def node_of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.nodes:
            path = f"constant{len(self.alive)}"
            self.root.register_buffer(path, value)
            self.name(self.graph.get_attr(path), value)
        return self.nodes[id(value)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs, named = map_values(self.node_of, tuple(args)), map_values(self.node_of, dict(kwargs))
        if func.name().partition(".")[0] in ALIASES:
            result = func(*args, **kwargs)
            self.nodes[id(result)] = inputs[0]
            self.alive.append(result)
            return result
        if func._schema.is_mutable:
            return self.mutate(func, args, kwargs, inputs, named)
        result = func(*args, **kwargs)
        self.record(func, inputs, named, result)
        return result

    def record(self, func: OpOverload, inputs: Any, named: Any, result: Any) -> fx.Node:
        node = self.graph.create_node("call_function", func, inputs, named)
        self.name(node, result)
        if isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    item = self.graph.create_node("call_function", operator.getitem, (node, index))
                    self.name(item, part)
        return node

    def mutate(self, func: OpOverload, args: Any, kwargs: Any, inputs: Any, named: Any) -> Any:
        functional = _functional_variant(func)
        if functional is torch.ops.aten.bernoulli.p and len(args) == 1 and "p" not in kwargs:
            kwargs, named = {**kwargs, "p": 0.5}, {**named, "p": 0.5}
        before = torch.get_rng_state()
        fresh = functional(*args, **kwargs)
        torch.set_rng_state(before)
        node = self.record(functional, inputs, named, fresh)
        result = func(*args, **kwargs)
        self.nodes[id(args[0])] = self.nodes[id(result)] = node
        self.alive.append(result)
        return result


def _snapshot(value: Any) -> Any:
    """In-place calls can change a tensor's sizes later."""
    return TensorMeta.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _functional_variant(func: OpOverload) -> OpOverload:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``."""
    namespace, _, name = func._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.rstrip("_"))
    overload = func._schema.overload_name or "default"
    return getattr(packet, RENAMED.get((f"aten::{name}", overload), overload))
