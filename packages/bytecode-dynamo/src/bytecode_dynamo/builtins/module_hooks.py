"""Module hooks on gradients: the graph installs them as eager mode does, and they run eagerly."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.hooks import BackwardHook

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, BoundRuleVariable, Kwargs, Variable
from bytecode_dynamo.variables.module import NNModuleVariable

from .graph_calls import wrap_result
from .saved_tensors import real_function

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
SET_UP = {
    "setup_input_hook": OpaqueCall(
        lambda hook, args: hook.setup_input_hook(tuple(args)), "setup_input_hook"
    ),
    "setup_output_hook": OpaqueCall(
        lambda hook, result: hook.setup_output_hook(result), "setup_output_hook"
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class BackwardHookVariable(Variable):
    """torch's helper for one call of a module with backward hooks."""

    node: Any

    def python_type(self) -> type:
        return BackwardHook

    def truth(self, ctx: Context) -> bool:
        return True

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return BoundRuleVariable(self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        (value,) = args
        fakes = value.as_fake(ctx)
        with ctx.mode:
            made = pytree.tree_map(
                lambda leaf: _returned(leaf) if isinstance(leaf, torch.Tensor) else leaf, fakes
            )
        node = ctx.graph.add_host_call(SET_UP[name], (self.node, value.as_proxy(ctx)), val=made)
        return wrap_result(ctx, node, made)


def _returned(fake: torch.Tensor) -> torch.Tensor:
    """An ``autograd.Function`` result that is its input: eager mode refuses writes to it."""
    view = fake.view_as(fake)
    if view.requires_grad and torch.is_grad_enabled():
        _autograd._set_creation_meta(view, _autograd.CreationMeta.IN_CUSTOM_FUNCTION)
    return view


@constructs(BackwardHook)
def make_backward_hook(
    ctx: Context, module: VariableTracker, hooks: VariableTracker, pre_hooks: VariableTracker
) -> VariableTracker:
    if (
        not ctx.host_effects
        or not isinstance(module, NNModuleVariable)
        or module.key.value is MISSING
    ):
        raise GraphBreak("BD018", f"hooks on gradients of {module.describe()}")
    if module.key.source is not None:
        ctx.guards.require(module.key.source, GuardKind.IDENTITY, module.key.value)
    found = [
        [real_function(ctx, hook, "a hook on gradients") for hook in held.unpack(ctx)]
        for held in (hooks, pre_hooks)
    ]
    ctx.require_once("a hook on gradients")
    reference = weakref.ref(module.key.value)
    target = OpaqueCall(lambda: BackwardHook(reference(), *found), "backward_hook")
    return BackwardHookVariable(ctx.graph.add_host_call(target))
