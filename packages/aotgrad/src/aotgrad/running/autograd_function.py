"""Builds the ``torch.autograd.Function`` of a call, or one for each of its autograd nodes.

Results that have nothing in common get separate autograd nodes, as in eager mode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .retain_graph import callable_in_parts

if TYPE_CHECKING:
    from aotgrad.tracing.joint import Joint

Hook = Callable[[torch.Tensor], Any]
WrapBackward = Callable[[Callable[..., Any]], Callable[..., Any]]


def define_function(
    call: Callable[..., Any], freed_with: Sequence[int], wrap_backward: WrapBackward | None
) -> None:
    """Defines ``apply`` in the globals of ``call``, from the functions that its text defines."""
    functions: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    function_backward = functions["function_backward"]
    if len(set(freed_with)) > 1:
        function_backward = callable_in_parts(function_backward, freed_with)
    if wrap_backward is not None:
        function_backward = wrap_backward(function_backward)
    functions["apply"] = _function_apply(functions["function_forward"], function_backward)


def define_node_functions(
    call: Callable[..., Any], joint: Joint, lead: int, read: Sequence[Sequence[int]],
    wrap_backward: WrapBackward | None,
) -> None:  # fmt: skip
    """Defines ``apply_0``, ``apply_1``, ... in the globals of ``call``, one per autograd node.

    Args:
        call: the generated function.
        joint: the traced program.
        lead: how many leading gradients belong to no input.
        read: for each node, the indices of the saved tensors that its backward reads.
        wrap_backward: see ``aot_backend``.
    """
    functions: dict[str, Any] = call.__globals__  # type: ignore[attr-defined]
    for i, (results, inputs) in enumerate(joint.nodes):
        indices = [lead + k for k in inputs]
        count = len(joint.plan.differentiable)
        backward = node_backward(functions["function_backward"], results, indices, count)
        backward = wrap_backward(backward) if wrap_backward else backward
        functions[f"apply_{i}"] = _function_apply(node_forward(read[i]), backward)


def _function_apply(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """``apply`` of a new autograd function, without checks that compiled graphs don't need."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type("CompiledGraph", (torch.autograd.Function,), members)
    # a slot costs a third of an attribute; the inherited ``apply`` would look the backward function
    # up on every call
    node = {
        "__slots__": ("offsets", "partial_state", "primals", "private", "saved_versions", "sizes"),
        "apply": backward,
    }
    function._backward_cls = type("CompiledGraphBackward", (function._backward_cls,), node)
    # Function.apply adds checks for functorch; call the C entry point below it
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


class SharedContext:
    """Stands in for ``ctx`` in the forward function; holds what all nodes of one call save."""

    __slots__ = ("materialize_grads", "offsets", "primals", "saved_versions", "sizes", "to_save")

    def detach_results(self, results: Sequence[torch.Tensor]) -> None:
        """Detaches saved results: otherwise nodes would reference each other through them."""
        if hasattr(self, "to_save"):
            ids = {id(result) for result in results}
            self.to_save = tuple(t.detach() if id(t) in ids else t for t in self.to_save)


def node_forward(read: Sequence[int]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The forward function of one node; it saves the tensors that the node's backward reads.

    Its first argument is a box with the shared context and the results, which are computed already.
    """

    def function_forward(
        ctx: Any, box: list[Any], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        shared, *results = box
        for name in SharedContext.__slots__:
            if hasattr(shared, name):
                setattr(ctx, name, getattr(shared, name))
        if hasattr(shared, "to_save"):
            ctx.to_save = tuple(t if k in read else None for k, t in enumerate(shared.to_save))
        if getattr(shared, "saved_versions", None) is not None:
            ctx.saved_versions = shared.saved_versions.only(read)
        return tuple(results)

    return function_forward


def node_backward(
    backward: Callable[..., Any], results: Sequence[int], indices: Sequence[int], count: int
) -> Callable[..., Any]:
    """The backward function of one node.

    Args:
        backward: the backward of all results together; absent tangents are None.
        results: which of all ``count`` results are the node's own.
        indices: where ``backward`` returns the gradients of the node's inputs.
        count: the number of results.
    """

    def function_backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        all_tangents: list[torch.Tensor | None] = [None] * count
        for result, tangent in zip(results, tangents):
            all_tangents[result] = tangent
        gradients = backward(ctx, *all_tangents)
        return (None, *(gradients[index] for index in indices))

    return function_backward


class ResultHooks(OrderedDict[int, Hook]):
    """Hooks that are not called when no gradient arrives at their tensor.

    In eager mode each result has an autograd node of its own. Those of a compiled graph share one,
    which also runs when only other results go backward; autograd then calls the hooks on this one
    with None.
    """

    def __setitem__(self, key: int, hook: Hook) -> None:
        super().__setitem__(key, lambda grad: None if grad is None else hook(grad))


def watch_hooks(results: Sequence[torch.Tensor]) -> None:
    """Makes hooks on the results of one autograd node skip absent gradients."""
    for result in results:
        if (node := result.grad_fn) is not None:
            result._backward_hooks = ResultHooks()
            node._register_hook_dict(result)
