"""Gradients inside captured code: ``torch.autograd.grad``, checkpoints, hooks on tensors."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from symshapes import is_leaf, statically_known_true
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import call_torch, get_attribute
from bytecode_dynamo.state.requirements import example_of
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, BoundRuleVariable, KeyedVariable, Kwargs
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable
from bytecode_dynamo.variables.userobject import OpaqueVariable

from . import graph_calls
from .saved_tensors import real_function
from .subgraph import capture_subgraph, inner_fake, without_effects


@evaluates_call(torch.autograd.grad)
def autograd_grad(
    ctx: Context, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    _require_whole_history(ctx, "torch.autograd.grad")
    return call_torch(ctx, torch.autograd.grad, list(args), kwargs)


def _require_whole_history(ctx: Context, what: str) -> None:
    """Break if an input has a history: a compiler would lose the paths through it."""
    if isinstance(ctx.graph, NestedGraph):
        raise GraphBreak("BD018", f"{what} inside a function under a torch transform")
    for node in ctx.graph.inputs:
        val = node.meta["val"]
        if isinstance(val, torch.Tensor) and val.requires_grad and not is_leaf(val):
            raise GraphBreak(
                "BD018", f"{what} in a graph with input {node.meta['source']}, which is not a leaf"
            )
    if any(
        isinstance(node.target, OpaqueCall) and node.target.branches
        for node in ctx.graph.graph.nodes
    ):
        raise GraphBreak(
            "BD018", f"{what} after torch.cond or while_loop, which decide what has a gradient"
        )


@evaluates_call(torch.autograd.backward)
def autograd_backward(
    ctx: Context, tensors: VariableTracker, grad_tensors: VariableTracker | None = None,
    retain_graph: VariableTracker | None = None, create_graph: VariableTracker | None = None,
    grad_variables: VariableTracker | None = None, inputs: VariableTracker | None = None,
) -> None:  # fmt: skip
    """``backward``: gradients of all leaves by ``torch.autograd.grad``, accumulated into the
    leaves.
    """
    _require_whole_history(ctx, "backward()")
    if grad_variables is not None:
        raise GraphBreak("BD018", "backward() with grad_variables", "pass gradient= to backward()")
    given = [] if inputs is None or inputs.is_none else _listed(ctx, inputs)
    leaves = given or [value for value in ctx.tensors.values() if _is_leaf_of(ctx, value)]
    if not leaves or any(_has_hooks(ctx, leaf) for leaf in leaves):
        raise GraphBreak(
            "BD018",
            "backward() that calls hooks of a leaf, or finds none",
            "call backward() outside the compiled region",
        )
    options: dict[str, VariableTracker] = {"allow_unused": ConstantVariable(True)}
    if grad_tensors is not None:
        options["grad_outputs"] = (
            grad_tensors if grad_tensors.is_none else new_tuple(_listed(ctx, grad_tensors))
        )
    options |= {} if retain_graph is None else {"retain_graph": retain_graph}
    options |= {} if create_graph is None else {"create_graph": create_graph}
    sources = new_tuple(_listed(ctx, tensors))
    found = call_torch(ctx, torch.autograd.grad, [sources, new_tuple(leaves)], options)
    with ctx.modes.grad_set(ctx, create_graph is not None and create_graph.truth(ctx)):
        for leaf, gradient in zip(leaves, found.unpack(ctx)):
            if not gradient.is_none:
                _accumulate(ctx, leaf, gradient)


def _is_leaf_of(ctx: Context, value: TensorVariable) -> bool:
    return value.fake.requires_grad and is_leaf(value.fake) and ctx.graph.sees(value.node)


def _accumulate(ctx: Context, leaf: VariableTracker, gradient: VariableTracker) -> None:
    held = get_attribute(ctx, leaf, "grad")
    if not held.is_none and not ctx.modes.grad_enabled(ctx):
        held.call_method(ctx, "add_", [gradient], {})
        return
    if not held.is_none:
        leaf.set_attr(ctx, "grad", call_torch(ctx, torch.add, [held, gradient]))
        return
    # The gradient shares no memory and has the leaf's layout; autograd keeps the gradient's own
    # layout if they agree.
    if _is_laid_out_like(gradient, leaf):
        made = gradient.call_method(ctx, "clone", [], {})
    else:
        made = call_torch(ctx, torch.empty_like, [leaf]).call_method(ctx, "copy_", [gradient], {})
    leaf.set_attr(ctx, "grad", made)


def _is_laid_out_like(gradient: VariableTracker, leaf: VariableTracker) -> bool:
    """Whether strides agree, apart from dimensions of size one, and the leaf is dense."""
    if not (isinstance(gradient, TensorVariable) and isinstance(leaf, TensorVariable)):
        return False
    sizes, steps = leaf.fake.shape, leaf.fake.stride()
    agree = all(
        statically_known_true(x == y) or _is_one(n)
        for n, x, y in zip(sizes, steps, gradient.fake.stride())
    )
    return agree and statically_known_true(
        leaf.fake.numel() == 1 + sum((n - 1) * s for n, s in zip(sizes, steps))
    )


def _is_one(size: int | torch.SymInt) -> bool:
    """Whether a size is one, with a guard if it is symbolic."""
    answer: Any = size == 1
    return answer if isinstance(answer, bool) else answer.node.guard_or_false()


def _has_hooks(ctx: Context, leaf: VariableTracker) -> bool:
    if any(isinstance(held, HookHandleVariable) for held in ctx.deferred.calls()):
        return True
    example: Any = example_of(ctx, leaf) if isinstance(leaf, TensorVariable) else None
    for name in ("_post_accumulate_grad_hooks", "_backward_hooks") if example is not None else ():
        hooks = getattr(example, name)
        if hooks or leaf.source is None:
            return True
        kind, expected = (GuardKind.EQUALS, None) if hooks is None else (GuardKind.LENGTH, 0)
        ctx.guards.require(AttrSource(leaf.source, name), kind, expected)
    return False


def _listed(ctx: Context, value: VariableTracker) -> list[VariableTracker]:
    return [value] if isinstance(value, TensorVariable) else value.unpack(ctx)


def backward(
    ctx: Context, tensor: TensorVariable, gradient: VariableTracker | None = None,
    retain_graph: VariableTracker | None = None,
    create_graph: VariableTracker | None = None, inputs: VariableTracker | None = None,
) -> VariableTracker:  # fmt: skip
    """``tensor.backward(...)``."""
    autograd_backward(ctx, tensor, gradient, retain_graph, create_graph, None, inputs)
    return NONE


TENSOR_METHODS["backward"] = backward


# -- checkpoints -----------------------------------------------------------------------------------

_regions = itertools.count()
_CHECKPOINT_OPTIONS = (
    "preserve_rng_state",
    "determinism_check",
    "debug",
    "early_stop",
    "context_fn",
    "use_reentrant",
)


_SAVING: Any = torch.utils.checkpoint._CachingTorchDispatchMode
_RECOMPUTING: Any = torch.utils.checkpoint._CachedTorchDispatchMode


@evaluates_call(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def selective(ctx: Context, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """The checkpoint policy is a hint; the partitioner decides, and results do not depend on it."""
    return new_tuple(
        [OpaqueVariable(cls, "a selective checkpoint") for cls in (_SAVING, _RECOMPUTING)]
    )


@evaluates_call(torch.utils.checkpoint.checkpoint)
def checkpoint(
    ctx: Context, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """The function's calls, each marked with the number of its outermost checkpoint region
    (contract P1).
    """
    options = {name: kwargs.pop(name) for name in _CHECKPOINT_OPTIONS if name in kwargs}
    around, again = (
        options["context_fn"].call(ctx, [], {}).unpack(ctx)
        if "context_fn" in options
        else (None, None)
    )
    for manager, selective_mode in ((around, _SAVING), (again, _RECOMPUTING)):
        known = (contextlib.nullcontext, selective_mode)
        if manager is not None and manager.python_type() not in known:
            raise GraphBreak(
                "BD018",
                "torch.utils.checkpoint.checkpoint with its own context_fn",
                "leave context_fn out, or call checkpoint outside the compiled region",
            )
    reentrant = "use_reentrant" not in options or options["use_reentrant"].truth(ctx)
    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    # The reentrant form differentiates only with respect to arguments that require a gradient.
    enabled = ctx.modes.grad_enabled(ctx) and not (
        reentrant and not any(arg.fake.requires_grad for arg in tensors)
    )
    tags = ctx.graph.tags
    ctx.graph.tags = {**tags, "recompute": tags.get("recompute", next(_regions))}
    try:
        with ctx.modes.grad_set(ctx, enabled):
            return function.call(ctx, list(args), kwargs)
    finally:
        ctx.graph.tags = tags


# -- hooks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HookHandleVariable(KeyedVariable):
    """The handle of a hook on a tensor.

    Inside of the graph the hook is a node; for an input, building the handle registers the hook
    after the graph.
    """

    node: Any
    tensor: TensorVariable
    method: str
    hook: VariableTracker

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return BoundRuleVariable(self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name != "remove":
            raise GraphBreak("BD014", f"{name} of a hook's handle")
        if self.node is not None:
            ctx.graph.add_call(REMOVE, (self.node,))
        else:
            ctx.deferred.remove(self)
        return NONE

    def reconstruct(self, gen: ValueBuilder) -> None:
        if self.node is not None and gen.ctx.host_effects:
            gen.load_graph_value(self.node)
            gen.keep(self.key)
            return
        if self.node is not None:
            raise GraphBreak(
                "BD015", "the handle of a hook on a tensor of the graph is needed after it"
            )
        gen.call_method(self.tensor, self.method, self.hook)
        gen.keep(self.key)


def _remove(handle: Any) -> None:
    handle.remove()


REMOVE = OpaqueCall(_remove, "remove_hook")


def register_hook(ctx: Context, tensor: TensorVariable, hook: VariableTracker) -> VariableTracker:
    """``tensor.register_hook(hook)``."""
    key = Identity(torch.utils.hooks.RemovableHandle)
    if tensor.source is not None and example_of(ctx, tensor) is not None and tensor.fake.is_leaf:
        handle = HookHandleVariable(key, None, tensor, "register_hook", hook)
        ctx.deferred.add(handle)
        return handle
    if not tensor.fake.requires_grad:
        raise GraphBreak(
            "BD011",
            f"register_hook on {tensor.describe()}, which does not require a gradient",
            "eager mode refuses this call, too; correct its arguments",
        )
    if ctx.host_effects and isinstance(hook, FunctionVariable) and hook.value is None:
        with contextlib.suppress(GraphBreak):
            return _register_as_it_is(ctx, key, tensor, hook)
    mark = ctx.effects.mark()
    try:
        with ctx.modes.grad_off(ctx), without_effects(ctx, "a hook on a tensor"):
            graph = capture_subgraph(ctx, hook, [tensor], [inner_fake(ctx, tensor.fake)], {})
    except GraphBreak:
        ctx.effects.rollback(mark)
        if not ctx.host_effects:
            raise
        return _register_as_it_is(ctx, key, tensor, hook)
    if pytree.tree_leaves(graph.outputs) and len(pytree.tree_leaves(graph.outputs)) != 1:
        raise GraphBreak(
            "BD018",
            "a hook on a tensor returns more than a tensor",
            "return a tensor or None from the hook",
        )

    def run(value: torch.Tensor, *lifted: Any) -> Any:
        return value.register_hook(graph.bind(lifted))

    target = OpaqueCall(run, "register_hook", (graph.module,))
    fakes = [tensor.fake, *(node.meta["val"] for node in graph.lifted)]
    graph_calls.evaluate(ctx, target, fakes)
    node = ctx.graph.add_call(target, (tensor.node, *graph.lifted))
    return HookHandleVariable(key, node, tensor, "register_hook", hook)


def _register_as_it_is(
    ctx: Context, key: Identity, tensor: TensorVariable, hook: VariableTracker
) -> VariableTracker:
    """Register the function itself, which runs in eager mode."""
    function = real_function(ctx, hook, "a hook on a tensor")
    ctx.require_once("a hook on a tensor")

    def run(value: torch.Tensor) -> Any:
        # results of one graph share an autograd node: it also runs when only others have gradients
        return value.register_hook(lambda grad: None if grad is None else function(grad))

    target = OpaqueCall(run, "register_hook")
    node = ctx.graph.add_host_call(target, (tensor.node,))
    return HookHandleVariable(key, node, tensor, "register_hook", hook)


def register_on_leaf(
    ctx: Context, tensor: TensorVariable, hook: VariableTracker
) -> VariableTracker:
    """``tensor.register_post_accumulate_grad_hook(hook)``."""
    if example_of(ctx, tensor) is None or not tensor.fake.is_leaf:
        raise GraphBreak(
            "BD018",
            f"register_post_accumulate_grad_hook on {tensor.describe()}, which is no input",
            "register the hook on a parameter, outside the compiled region",
        )
    name = "register_post_accumulate_grad_hook"
    handle = HookHandleVariable(
        Identity(torch.utils.hooks.RemovableHandle), None, tensor, name, hook
    )
    ctx.deferred.add(handle)
    return handle


def retain_grad(ctx: Context, tensor: TensorVariable) -> VariableTracker:
    """``tensor.retain_grad()``."""
    if not ctx.host_effects:
        raise GraphBreak(
            "BD018",
            f"{tensor.describe()}.retain_grad(): compilers do not keep gradients between calls",
            "call retain_grad() outside the compiled region, or return "
            "torch.autograd.grad's result",
        )
    result = call_torch(ctx, "retain_grad", [tensor])
    # its earlier history is not in the graph
    next(iter(reversed(ctx.graph.graph.nodes))).meta["host"] = True
    return result


TENSOR_METHODS["retain_grad"] = retain_grad
TENSOR_METHODS["register_hook"] = register_hook
TENSOR_METHODS["register_post_accumulate_grad_hook"] = register_on_leaf
