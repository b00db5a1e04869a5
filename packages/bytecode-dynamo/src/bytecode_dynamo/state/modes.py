"""Torch modes during evaluation: set for real, recorded as graph nodes, and undone at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from bytecode_dynamo.guards.global_state import AUTOCAST_DEVICES
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.hook.stance import breaks_are_errors

from .tracker import Capture, VariableTracker


class Setting(Protocol):
    """A setting of torch that the program may change."""

    def read(self) -> Any: ...

    def restore(self, value: Any) -> None: ...


_GRAD, _ACTIVE, _ENTERED, _LEFT, _STRICT, _FUNCTION, _NO_OVERRIDES, _SETTING = (
    object() for _ in range(8)
)


def autocast_defaults() -> tuple[Any, ...]:
    """The defaults of ``autocast``: each device's dtype, and whether casts are cached."""
    return (*map(torch.get_autocast_dtype, AUTOCAST_DEVICES), torch.is_autocast_cache_enabled())


class Modes:
    """Grad mode and the stack of entered context managers, stored in the effects so that rollback
    restores them.
    """

    def __init__(self, ctx: Capture) -> None:
        self.entry_grad = torch.is_grad_enabled()
        self.entry_autocast = autocast_defaults()
        self.overrides_off_at_entry = not torch._C._is_torch_function_enabled()
        self.entered = False
        """Whether the graph enters modes other than grad mode."""
        self.entry_function_modes: tuple[VariableTracker, ...] = ()
        self._real: list[Any] = []
        self._before: dict[Setting, Any] = {}
        ctx.effects.set_initial(_GRAD, self.entry_grad)
        ctx.effects.set_initial(_ACTIVE, ())
        ctx.effects.set_initial(_ENTERED, ())
        ctx.effects.set_initial(_LEFT, ())
        ctx.effects.set_initial(_STRICT, breaks_are_errors())
        ctx.effects.set_initial(_NO_OVERRIDES, self.overrides_off_at_entry)

    def begin_in(self, ctx: Capture, modes: Sequence[VariableTracker]) -> None:
        """Set the function modes around the frame."""
        self.entry_function_modes = tuple(modes)
        ctx.effects.set_initial(_FUNCTION, self.entry_function_modes)

    def require_autocast_defaults(self, ctx: Capture) -> None:
        """Guard on the defaults of ``autocast``; the guard on torch's state checks them only while
        autocast is on.
        """
        names = [f"torch.get_autocast_dtype({device!r})" for device in AUTOCAST_DEVICES]
        parts = (*names, "torch.is_autocast_cache_enabled()")
        same = Answer("autocast", lambda read: read(), self.entry_autocast, parts=parts)
        ctx.guards.require(ConstSource(autocast_defaults), GuardKind.CUSTOM, same)

    # -- traced changes ----------------------------------------------------------------------------

    def grad_enabled(self, ctx: Capture) -> bool:
        """Grad mode at this point."""
        return ctx.effects.read(_GRAD)

    def set_grad(self, ctx: Capture, enabled: bool) -> None:
        """Change grad mode, in the graph as well."""
        if enabled != self.grad_enabled(ctx):
            ctx.graph.add_call(torch._C._set_grad_enabled, (enabled,))
            ctx.graph.calls -= 1
            ctx.effects.write(_GRAD, enabled)
            torch._C._set_grad_enabled(enabled)

    @contextmanager
    def grad_off(self, ctx: Capture) -> Iterator[None]:
        """Evaluate without gradients, as torch does at run time by itself."""
        before = self.grad_enabled(ctx)
        self._assume_grad(ctx, False)
        try:
            yield
        finally:
            self._assume_grad(ctx, before)

    def _assume_grad(self, ctx: Capture, enabled: bool) -> None:
        ctx.effects.write(_GRAD, enabled)
        torch._C._set_grad_enabled(enabled)

    @contextmanager
    def grad_set(self, ctx: Capture, enabled: bool) -> Iterator[None]:
        """Change grad mode for a block, in the graph as well."""
        before = self.grad_enabled(ctx)
        self.set_grad(ctx, enabled)
        try:
            yield
        finally:
            self.set_grad(ctx, before)

    def strict(self, ctx: Capture) -> bool:
        """Whether graph breaks are errors at this point."""
        return ctx.effects.read(_STRICT)

    def set_strict(self, ctx: Capture, strict: bool) -> None:
        """Set whether graph breaks are errors from here on."""
        ctx.effects.write(_STRICT, strict)

    def push(self, ctx: Capture, manager: Any) -> None:
        """Note that a context manager was entered."""
        ctx.effects.write(_ACTIVE, (*ctx.effects.read(_ACTIVE), manager))

    def pop(self, ctx: Capture, manager: Any) -> None:
        """Note that the innermost context manager was left."""
        active = ctx.effects.read(_ACTIVE)
        ctx.effects.write(_ACTIVE, tuple(other for other in active if other.key is not manager.key))

    def active(self, ctx: Capture) -> tuple[Any, ...]:
        """The active context managers, outermost first."""
        return ctx.effects.read(_ACTIVE)

    def enter(self, ctx: Capture, manager: Any) -> None:
        """Enter a mode of torch for real, and in the graph."""
        self.entered = True
        node = ctx.graph.add_call(manager.mode.enter, manager.settings)
        ctx.graph.calls -= 1
        ctx.effects.write(_ENTERED, (*ctx.effects.read(_ENTERED), (manager, node)))
        self._enter(manager)

    def leave(self, ctx: Capture) -> None:
        """Leave the mode that was entered last."""
        *outer, (manager, node) = ctx.effects.read(_ENTERED)
        ctx.graph.add_call(manager.mode.leave, (node,))
        ctx.graph.calls -= 1
        ctx.effects.write(_ENTERED, tuple(outer))
        self._leave()

    def is_entered(self, ctx: Capture, manager: Any) -> bool:
        """Whether the graph entered the mode of a manager."""
        return any(other.key is manager.key for other in self.entered_managers(ctx))

    def entered_managers(self, ctx: Capture) -> tuple[Any, ...]:
        """The managers whose modes the graph has entered, outermost first."""
        return tuple(manager for manager, _ in ctx.effects.read(_ENTERED))

    def leave_outer(self, ctx: Capture, manager: Any, restored: Any) -> None:
        """Leave a manager entered before the frame by entering what was before it."""
        ctx.effects.write(_LEFT, (*self.left(ctx), manager))
        self.enter(ctx, restored)

    def left(self, ctx: Capture) -> tuple[Any, ...]:
        """The managers entered before the frame that it has left, innermost first."""
        return ctx.effects.read(_LEFT)

    def set_value(self, ctx: Capture, setting: Setting, value: Any) -> None:
        """Change a setting of torch for real; the end of capture restores it."""
        self._before.setdefault(setting, setting.read())
        ctx.effects.write((_SETTING, setting), value)
        setting.restore(value)

    def is_set(self, setting: Setting) -> bool:
        """Whether the program changed a setting."""
        return setting in self._before

    def note_grad(self, ctx: Capture, enabled: bool) -> None:
        """Read the grad mode that entering or leaving another mode has set."""
        ctx.effects.write(_GRAD, enabled)

    def function_modes(self, ctx: Capture) -> tuple[VariableTracker, ...]:
        """The active function modes, whose ``__torch_function__`` sees each torch call, outermost
        first.
        """
        return ctx.effects.read(_FUNCTION, ())

    def set_function_modes(self, ctx: Capture, modes: tuple[VariableTracker, ...]) -> None:
        """Set the function modes from here on."""
        ctx.effects.write(_FUNCTION, modes)

    def push_function_mode(self, ctx: Capture, mode: VariableTracker) -> None:
        """Enter a function mode."""
        self.set_function_modes(ctx, (*self.function_modes(ctx), mode))

    def pop_function_mode(self, ctx: Capture) -> VariableTracker:
        """Leave the innermost function mode."""
        *outer, mode = self.function_modes(ctx)
        self.set_function_modes(ctx, tuple(outer))
        return mode

    @contextmanager
    def outer_function_modes(self, ctx: Capture) -> Iterator[None]:
        """Evaluate without the innermost mode, as inside of that mode's own method."""
        mode = self.pop_function_mode(ctx)
        try:
            yield
        finally:
            self.push_function_mode(ctx, mode)

    def overrides_off(self, ctx: Capture) -> bool:
        """Whether tensor subclasses are hidden from torch calls at this point."""
        return ctx.effects.read(_NO_OVERRIDES)

    def set_overrides_off(self, ctx: Capture, off: bool) -> bool:
        """Set whether they are from here on; returns the previous setting."""
        before = self.overrides_off(ctx)
        ctx.effects.write(_NO_OVERRIDES, off)
        return before

    @contextmanager
    def without_overrides(self, ctx: Capture) -> Iterator[None]:
        """Hide tensor subclasses from the torch calls of a block."""
        before = self.set_overrides_off(ctx, True)
        try:
            yield
        finally:
            self.set_overrides_off(ctx, before)

    def _enter(self, manager: Any) -> None:
        self._real.append((manager.mode.leave, manager.mode.enter(*manager.settings)))

    def _leave(self) -> None:
        leave, entered = self._real.pop()
        leave(entered)

    # -- undoing -----------------------------------------------------------------------------------

    def resync(self, ctx: Capture) -> None:
        """Set the thread's modes to those of the effects after a rollback."""
        self._leave_all()
        for manager, _ in ctx.effects.read(_ENTERED):
            self._enter(manager)
        torch._C._set_grad_enabled(self.grad_enabled(ctx))
        for setting, value in self._before.items():
            setting.restore(ctx.effects.read((_SETTING, setting), value))

    def close_graph(self, ctx: Capture) -> None:
        """Leave the graph's modes, so that it ends as it began."""
        for manager, node in reversed(ctx.effects.read(_ENTERED)):
            ctx.graph.add_call(manager.mode.leave, (node,))
        if self.grad_enabled(ctx) != self.entry_grad:
            ctx.graph.add_call(torch._C._set_grad_enabled, (self.entry_grad,))

    def restore(self) -> None:
        """Set the thread's modes back to what they were before capture."""
        self._leave_all()
        torch._C._set_grad_enabled(self.entry_grad)
        for setting, value in self._before.items():
            setting.restore(value)

    def _leave_all(self) -> None:
        while self._real:
            self._leave()
