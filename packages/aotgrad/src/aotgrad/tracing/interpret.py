"""Runs a captured graph node by node, so that recorded nodes can be traced back to the captured
ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from symshapes import FakeTensorMode
from torch.amp import autocast_mode
from torch.autograd import grad_mode
from torch.fx.node import map_arg

from aotgrad.errors import AotError

from .functional import tensors_in
from .functional_ops import register_functional_kernels
from .opaque_backward import call_with_opaque_backward, has_opaque_backward

_ENTER = (autocast_mode._enter_autocast, grad_mode._enter_inference_mode)
_EXIT = (autocast_mode._exit_autocast, grad_mode._exit_inference_mode)


def run_captured(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    enter: Callable[[torch.fx.Node], None] = lambda node: None,
    wrap_constant: Callable[[torch.Tensor], torch.Tensor] = lambda t: t,
) -> Any:
    """Runs a graph and returns the value of its output node.

    Args:
        gm: a captured graph (C1), or any GraphModule.
        inputs: one value per placeholder.
        enter: called with each node before it runs.
        wrap_constant: applied to tensors read by ``get_attr``.
    """
    values: dict[torch.fx.Node, Any] = {}
    modes: list[Any] = []
    feed = iter(inputs)
    for node in gm.graph.nodes:
        enter(node)
        if node.target is grad_mode._enter_inference_mode:
            FakeTensorMode.decompose_in_inference_mode()
        try:
            values[node] = _run_node(gm, node, values, feed, wrap_constant)
        except AotError:
            _leave(modes)
            raise
        except Exception as error:
            _leave(modes)
            error.add_note(
                f"while running {node.format_node()}\n{node.meta.get('stack_trace') or ''}".rstrip()
            )
            raise
        if node.target in _ENTER:
            modes.append(values[node])
        elif node.target in _EXIT:
            modes.pop()
        if node.op == "output":
            return values[node]
    return None


def _leave(modes: list[Any]) -> None:
    """Leaves modes now: what leaves them later, with the error, restores this trace's keys."""
    for mode in reversed(modes):
        mode.__exit__(None, None, None)


def _run_node(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
    values: dict[torch.fx.Node, Any],
    feed: Any,
    wrap: Any,
) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    match node.op:
        case "placeholder":
            return next(feed)
        case "get_attr":
            found = operator.attrgetter(str(node.target))(gm)
            return wrap(found) if isinstance(found, torch.Tensor) else found
        case "call_function" if kwargs.get("out") is not None:
            return _call_with_out(node.target, args, kwargs)
        case "call_function" if has_opaque_backward(node.target, args, kwargs):
            return call_with_opaque_backward(node.target, args, kwargs)
        case "call_function":
            if hasattr(node.target, "graphs"):
                args, kwargs = _plain_containers(args), _plain_containers(kwargs)
                for inner in node.target.graphs:  # type: ignore[union-attr]
                    register_functional_kernels(inner.graph)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        case "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        case "call_module":
            return gm.get_submodule(str(node.target))(*args, **kwargs)
        case _:
            return args[0]


def _plain_containers(value: Any) -> Any:
    """``value`` with plain lists and dicts instead of FX's classes, which pytrees distinguish."""
    if isinstance(value, dict):
        return {key: _plain_containers(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_plain_containers(held) for held in value]
    return tuple(_plain_containers(held) for held in value) if type(value) is tuple else value


def _call_with_out(function: Any, args: Any, kwargs: Any) -> Any:
    """Runs a call with ``out=``. Results that fit keep the strides of the given memory, which
    functionalisation would replace.
    """
    targets = [t for t in tensors_in(kwargs["out"]) if torch._is_functional_tensor(t)]
    before = [(t.shape, t.stride()) for t in targets]
    result = function(*args, **kwargs)
    for target, (shape, stride) in zip(targets, before):
        if target.shape == shape and target.stride() != stride:
            with torch.no_grad():
                options = {"dtype": target.dtype, "device": target.device}
                copy = torch.empty_strided(shape, stride, **options).copy_(target)
                torch._sync(copy)
                torch._functionalize_replace(target, torch._from_functional_tensor(copy))
    return result
