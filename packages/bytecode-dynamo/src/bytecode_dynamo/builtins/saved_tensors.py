"""Saved-tensor hooks: entering and leaving them are calls in the graph; the hooks run eagerly."""

from __future__ import annotations

import collections
import types
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.hooks import BackwardHook

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, evaluates_call
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import constant_of, raise_error
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import (
    Args,
    BoundRuleVariable,
    Kwargs,
    LazyVariable,
    Variable,
    realize,
)
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.context import TorchModeVariable
from bytecode_dynamo.variables.function import BoundMethodVariable, CellVariable, FunctionVariable
from bytecode_dynamo.variables.generator_modes import HOOKS_DISABLED, HOOKS_ENABLED
from bytecode_dynamo.variables.module import NNModuleVariable

from .graph_calls import wrap_result

_autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
POP = OpaqueCall(_autograd._pop_saved_tensors_default_hooks, "pop_saved_tensors_hooks")
_CONTAINERS = (list, dict, set, collections.deque)


def real_function(ctx: Context, function: VariableTracker, what: str) -> Any:
    """The real function of a tracker: an existing one, one with constant closure cells, or a bound
    method.
    """
    if isinstance(function, BoundMethodVariable):
        owner = _existing(ctx, realize(ctx, function.owner))
        if owner is not None:
            return types.MethodType(
                real_function(ctx, realize(ctx, function.function), what), owner
            )
    if not isinstance(function, FunctionVariable):
        raise GraphBreak("BD018", f"{what} that is {function.describe()}")
    if function.value is not None:
        if function.source is not None:
            ctx.guards.require(function.source, GuardKind.IDENTITY, function.value)
        return function.value
    values = [_held(ctx, realize(ctx, cell), what) for cell in function.closure]
    made = types.FunctionType(
        function.code,
        function.globals,
        function.name,
        tuple(constant_of(ctx, value, f"a default of {what}") for value in function.defaults)
        or None,
        tuple(map(types.CellType, values)) or None,
    )
    made.__kwdefaults__ = {
        name: constant_of(ctx, value, f"a default of {what}")
        for name, value in function.keyword_defaults
    }
    return made


def _held(ctx: Context, cell: VariableTracker, what: str) -> Any:
    """The contents of a cell: a constant or an existing object."""
    held = ctx.effects.read(cell.key) if isinstance(cell, CellVariable) else None
    if (
        isinstance(held, LazyVariable)
        and isinstance(held.value, _CONTAINERS)
        and held.source is not None
    ):
        ctx.guards.require(held.source, GuardKind.IDENTITY, held.value)  # any contents
        return held.value
    value = cell.contents(ctx) if isinstance(cell, CellVariable) else None
    value = realize(ctx, value) if value is not None else NONE
    if isinstance(value, FunctionVariable):
        return real_function(ctx, value, what)
    existing = _existing(ctx, value)
    return existing if existing is not None else constant_of(ctx, value, f"a variable of {what}")


def _existing(ctx: Context, value: VariableTracker) -> Any:
    """The existing object of a tracker, or None."""
    key = value.identity()
    if not isinstance(key, Identity) or not key.exists or key.source is None:
        return None
    ctx.guards.require(key.source, GuardKind.IDENTITY, key.value)
    return key.value


def _record(ctx: Context, target: OpaqueCall) -> None:
    if not ctx.host_effects:
        raise GraphBreak(
            "BD018",
            f"{target.__name__}: compilers choose themselves what is saved for backward",
            "enter the hooks around the compiled call's forward and backward in "
            "eager mode, or leave them out",
        )
    ctx.require_once(target.__name__)
    ctx.graph.add_host_call(target)


@evaluates_call(_autograd._push_saved_tensors_default_hooks)
def push_hooks(ctx: Context, pack: VariableTracker, unpack: VariableTracker) -> None:
    functions = [
        real_function(ctx, function, "a hook on saved tensors") for function in (pack, unpack)
    ]
    disabled = _message(ctx)
    if disabled is not None:
        raise_error(ctx, RuntimeError, disabled)
    _record(
        ctx,
        OpaqueCall(
            lambda: _autograd._push_saved_tensors_default_hooks(*functions),
            "push_saved_tensors_hooks",
        ),
    )


evaluates_call(_autograd._pop_saved_tensors_default_hooks)(lambda ctx: _record(ctx, POP))


@evaluates_call(_autograd._saved_tensors_hooks_get_disabled_error_message)
def disabled_message(ctx: Context) -> VariableTracker:
    return ConstantVariable(_message(ctx))


def _message(ctx: Context) -> str | None:
    """Why hooks are disabled at this point; guarded where the frame's callers decided."""
    for manager in reversed(ctx.modes.entered_managers(ctx)):
        if isinstance(manager, TorchModeVariable) and manager.mode in (
            HOOKS_DISABLED,
            HOOKS_ENABLED,
        ):
            return next(iter(manager.settings), None)
    read = _autograd._saved_tensors_hooks_get_disabled_error_message
    message = read()
    same = Answer("what says that hooks on saved tensors are disabled", lambda now: now(), message)
    ctx.guards.require(ConstSource(read), GuardKind.CUSTOM, same)
    return message


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
