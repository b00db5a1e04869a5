"""A tracer for tests: records the ATen calls of a function on real tensors as a C2 graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from primops.builder import map_values

ALIASES = ("aten::detach", "aten::lift_fresh")


def trace(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """The functional graph of ``function(*inputs)``, with the values of this run in
    ``meta["val"]``.

    torch's functionalisation turns in-place calls, also through views, into values; writes to the
    inputs stay inside the graph. Tensors that are neither inputs nor computed become constants. The
    function returns a tensor or a flat sequence of them.
    """
    recorder = _Recorder()
    wrapped = []
    for position, value in enumerate(inputs):
        value = value.detach() if isinstance(value, torch.Tensor) else value
        recorder.name(recorder.graph.placeholder(f"in{position}"), value)
        wrapped.append(
            torch._to_functional_tensor(value) if isinstance(value, torch.Tensor) else value
        )
    torch._enable_functionalization(reapply_views=True)  # type: ignore[attr-defined]
    try:
        with recorder, _HostReads():
            result = function(*wrapped)
            outputs = map_values(
                _unwrapped, tuple(result) if isinstance(result, (tuple, list)) else (result,)
            )
    finally:
        torch._disable_functionalization()  # type: ignore[attr-defined]
    recorder.graph.output(tuple(recorder.node_of(value) for value in outputs))
    graph = fx.GraphModule(recorder.root, recorder.graph)
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and not node.users and node.target is operator.getitem:
            graph.graph.erase_node(node)
    return graph


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)


class _HostReads(TorchFunctionMode):
    """``tensor_split`` reads its positions from memory, which the wrappers of functionalisation
    lack: it gets numbers.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "tensor_split":
            args = (
                *args[:1],
                *(_unwrapped(x).tolist() if isinstance(x, torch.Tensor) else x for x in args[1:]),
            )
        return func(*args, **(kwargs or {}))


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
        node.meta["val"] = value
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
        inputs, named = (
            map_values(self.node_of, tuple(args)),
            map_values(self.node_of, dict(kwargs)),
        )
        result = func(*args, **kwargs)
        if func.name().partition(".")[0] in ALIASES:
            self.nodes[id(result)] = inputs[0]
            self.alive.append(result)
            return result
        node = self.graph.create_node("call_function", func, inputs, named)
        self.name(node, result)
        if isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    self.name(
                        self.graph.create_node("call_function", operator.getitem, (node, index)),
                        part,
                    )
        return result


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested arguments, in order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
