"""Modes of torch that generators set: attention backends, and no hooks on saved tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from bytecode_dynamo.function_table import evaluates_call
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import constant_of
from bytecode_dynamo.state.tracker import VariableTracker

from .context import TorchMode, TorchModeVariable, manager_mode
from .wrap import tracker_for, wrap_object

_MANAGER = contextlib._GeneratorContextManager
_autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]


def _variable(manager: Any, name: str) -> Any:
    """A variable of the suspended generator."""
    return manager.gen.gi_frame.f_locals[name]


# -- attention backends ------------------------------------------------------------------------


def _attention(backends: tuple[int, ...], *options: Any) -> Any:
    return sdpa_kernel([SDPBackend(backend) for backend in backends], *options)


def _backends_before(manager: Any) -> tuple[TorchMode, tuple[Any, ...]]:
    before = _variable(manager, "previous_backends"), _variable(manager, "set_priority")
    return ATTENTION, _attention_settings(*before)


def _attention_settings(backends: Any, set_priority: bool = False) -> tuple[Any, ...]:
    given = backends if isinstance(backends, list) else [backends]
    return tuple(int(backend) for backend in given), set_priority


ATTENTION = manager_mode(_attention, _backends_before)


@evaluates_call(sdpa_kernel)
def choose_attention(
    ctx: Context, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    values = [arg.as_constant(ctx) for arg in args]
    named = {name: value.as_constant(ctx) for name, value in kwargs.items()}
    return TorchModeVariable(Identity(_MANAGER), ATTENTION, _attention_settings(*values, **named))


# -- hooks on saved tensors --------------------------------------------------------------------


@contextlib.contextmanager
def _enable_saved_tensors_hooks() -> Iterator[None]:
    """Allow hooks again inside of a region that disables them."""
    message = _autograd._saved_tensors_hooks_get_disabled_error_message()
    _autograd._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        if message is not None:
            _autograd._saved_tensors_hooks_disable(message)


def _hooks_before(manager: Any) -> tuple[TorchMode, tuple[Any, ...]]:
    message = _variable(manager, "maybe_prev_message")
    return (HOOKS_ENABLED, ()) if message is None else (HOOKS_DISABLED, (message,))


HOOKS_ENABLED = manager_mode(_enable_saved_tensors_hooks)
HOOKS_DISABLED = manager_mode(disable_saved_tensors_hooks, _hooks_before)


@evaluates_call(disable_saved_tensors_hooks)
def disable_hooks(ctx: Context, error_message: VariableTracker) -> VariableTracker:
    text = constant_of(ctx, error_message, "the message of disable_saved_tensors_hooks")
    return TorchModeVariable(Identity(_MANAGER), HOOKS_DISABLED, (text,))


# -- existing managers -------------------------------------------------------------------------


def _settings(manager: Any) -> tuple[TorchMode, tuple[Any, ...]] | None:
    """The mode and settings of an entered manager; None for other managers."""
    if manager.gen.gi_frame is None or inspect.getgeneratorstate(manager.gen) != "GEN_SUSPENDED":
        return None
    if manager.gen.gi_code is _code_of(disable_saved_tensors_hooks):
        return HOOKS_DISABLED, (_variable(manager, "error_message"),)
    if manager.gen.gi_code is _code_of(sdpa_kernel):
        values = _variable(manager, "backends"), _variable(manager, "set_priority")
        return ATTENTION, _attention_settings(*values)
    return None


def _code_of(function: Any) -> Any:
    return inspect.unwrap(function).__code__


@tracker_for(_MANAGER)
def wrap_manager(ctx: Context, value: Any, source: Source) -> VariableTracker:
    found = _settings(value) if type(value) is _MANAGER else None
    if found is None:
        return wrap_object(ctx, value, source)
    ctx.guards.require(source, GuardKind.TYPE_IS, _MANAGER)
    ctx.guards.require(source, GuardKind.CUSTOM, lambda now: _settings(now) == found)
    key = Identity(_MANAGER, value, source)
    return ctx.effects.remember(value, TorchModeVariable(key, *found, source=source))
