"""Functions of one score and its position, as functional graphs.

A function is traced on one element: tensors of sizes ``[1, 1, 1, 1]``. Only elementwise operators
and lookups in captured tensors are taken, so the same graph computes all elements at once from
tensors that broadcast, or those of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from symshapes import FakeTensorMode, LazyGraphModule, PlainGraph, ShapeEnv, SymbolicError
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ELEMENT = (1, 1, 1, 1)
HINT = 4
CPU = torch.device("cpu")
"""Functions are traced there: their graphs are the same for all devices."""
POSITIONS = ("b", "h", "q", "k")
_CREATE = {
    "full", "scalar_tensor", "ones_like", "zeros_like", "full_like", "new_full", "new_zeros",
    "new_ones", "_to_copy", "alias", "detach", "clone", "lift_fresh_copy",
}  # fmt: skip
_VIEWS = {"select", "slice", "unsqueeze", "squeeze", "transpose", "permute", "t"}
"""Of captured tensors."""
_ELEMENTWISE = {
    "floor_divide", "masked_fill", "fill",
    "tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward",
    "softplus_backward", "leaky_relu_backward", "elu_backward", "hardtanh_backward",
    "hardswish_backward", "hardsigmoid_backward", "logit_backward",
}  # fmt: skip
"""Those without the tag."""


class Refused(Exception):
    """A function that is no elementwise one; the message says why."""


class _Recorder(TorchDispatchMode):
    """Records the operators of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = PlainGraph()
        self.nodes: dict[int, tuple[torch.Tensor, Node, bool]] = {}

    def add_input(self, name: str, fake: torch.Tensor, varies: bool) -> torch.Tensor:
        """``varies``: whether it differs between elements, as captured tensors do not."""
        node = self.graph.placeholder(name)
        self._bind(fake, node, varies)
        return fake

    def node_of(self, value: torch.Tensor) -> Node:
        found = self.nodes.get(id(value))
        if found is None:
            raise Refused("it reads a tensor that is no argument")
        return found[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, target = kwargs or {}, func
        if func._schema.is_mutable:
            target = _functional(func, args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": CPU}
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        operands = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for leaf in operands:
            self.node_of(leaf)
        varies = any(self.nodes[id(leaf)][2] for leaf in operands)
        self._require(target, args, result, varies)
        given = map_aggregate(
            (args, kwargs), lambda a: self.node_of(a) if isinstance(a, torch.Tensor) else a
        )
        node = self.graph.create_node("call_function", target, *given)  # type: ignore[misc]
        self._bind(result, node, varies)
        return result

    def _require(self, func: Any, args: Any, result: torch.Tensor, varies: bool) -> None:
        name = func._schema.name.removeprefix("aten::")
        if func.namespace != "aten":
            raise Refused(f"it calls {func}")
        if any(isinstance(leaf, torch.SymInt) for leaf in _leaves(args)):
            raise Refused("it depends on sizes of captured tensors")
        if name == "index":
            if any(index is None for index in args[1]) or len(args[1]) < args[0].dim():
                raise Refused("it reads rows of a captured tensor, not elements")
            return
        is_view = name in _VIEWS and not varies
        known = torch.Tag.pointwise in func.tags or name in _CREATE or name in _ELEMENTWISE
        if not (known or is_view):
            raise Refused(f"{func} is not elementwise")
        if known and result.numel() != 1 and varies:
            raise Refused("it computes a tensor of more than one element")

    def _bind(self, fake: torch.Tensor, node: Node, varies: bool) -> None:
        node.meta["val"] = fake
        self.nodes[id(fake)] = (fake, node, varies)


def _functional(func: Any, args: Any) -> Any:
    """The operator that returns what ``func`` writes to its first operand, whose value it becomes.
    Derivatives have such calls.
    """
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if not name.endswith("_") or not hasattr(packet, func._overloadname) or args[0]._is_view():
        raise Refused(f"it calls {func}")
    return getattr(packet, func._overloadname)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    map_aggregate(value, lambda leaf: found.append(leaf))  # type: ignore[func-returns-value]
    return found


def trace_function(
    function: Callable[..., Any], scored: bool, captured: Sequence[torch.Tensor]
) -> GraphModule:
    """``function(score, b, h, q, k, *captured)``, without the score unless ``scored``, as a graph
    whose result is one float32 or, without a score, one bool. Raises Refused.
    """
    return _trace(function, scored, captured, gradient=False)


def trace_gradient(
    function: Callable[..., Any], captured: Sequence[torch.Tensor]
) -> GraphModule | None:
    """The gradient of the score from that of a function's result: a function of the gradient, then
    of what ``function`` takes. None where both are equal. Raises Refused.
    """
    gm = _trace(function, True, captured, gradient=True)
    first, (result,) = next(iter(gm.graph.nodes)), gm.graph.output_node().args[0]  # type: ignore[misc]
    return None if result is first else gm


def _trace(
    function: Callable[..., Any], scored: bool, captured: Sequence[torch.Tensor], gradient: bool
) -> GraphModule:
    env = ShapeEnv()
    fakes, recorder = FakeTensorMode(env), _Recorder()

    def element(dtype: torch.dtype) -> torch.Tensor:
        return fakes.empty(ELEMENT, (1,) * 4, dtype=dtype, device=CPU)

    def like(value: torch.Tensor) -> torch.Tensor:
        sizes = [1 if _is(size, 1) else env.create_symbol(HINT) for size in value.shape]
        strides = tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
        return fakes.empty(tuple(sizes), strides, dtype=value.dtype, device=CPU)

    with torch.enable_grad():
        grad = recorder.add_input("grad", element(torch.float32), True) if gradient else None
        score = element(torch.float32).requires_grad_(gradient)
        given = [recorder.add_input("score", score, True)] if scored else []
        given += [recorder.add_input(name, element(torch.int32), True) for name in POSITIONS]
        given += [
            recorder.add_input(f"captured{i}", like(value), False)
            for i, value in enumerate(captured)
        ]
        with fakes, recorder:
            try:
                result = _checked(function(*given), torch.float32 if scored else torch.bool)
                if gradient:
                    result = _gradient(result, score, grad)
            except (RuntimeError, SymbolicError) as error:
                raise Refused(str(error)) from error
    if env.guards or env.deferred_asserts:
        raise Refused("it depends on sizes of captured tensors")
    recorder.graph.output((recorder.node_of(result),))
    gm = LazyGraphModule(torch.nn.Module(), recorder.graph)
    gm.graph.eliminate_dead_code()
    return gm


def _is(size: Any, number: int) -> bool:
    return type(size) is int and size == number


def _checked(result: Any, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or tuple(result.shape) not in ((), ELEMENT):
        raise Refused(f"its result is no tensor of one element: {type(result).__name__}")
    return result if result.dtype == dtype else result.to(dtype)


def _gradient(result: torch.Tensor, score: torch.Tensor, grad: Any) -> torch.Tensor:
    if not result.requires_grad:
        return grad * 0.0
    if result.dim() == 0:
        result = result * torch.ones_like(score)
    (found,) = torch.autograd.grad(result, score, grad, allow_unused=True)
    return grad * 0.0 if found is None else found
