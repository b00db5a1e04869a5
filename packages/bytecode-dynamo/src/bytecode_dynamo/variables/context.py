"""Context managers of torch modes (grad mode, autocast), rebuilt by entering them again."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_code
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.hook.stance import STRICT_WRAPPER, error_on_graph_break
from bytecode_dynamo.polyfills import library as polyfills
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import (
    call_polyfill,
    class_attribute,
    constant_of,
    constants,
    get_attribute,
    wrap_value,
)
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, KeyedVariable, Kwargs, Variable
from .constant import NONE, ConstantVariable
from .wrap import by_type, tracker_for, wrap_object


@dataclass(frozen=True, slots=True, eq=False)
class ModeContextVariable(KeyedVariable):
    """An object with ``__enter__`` and ``__exit__`` that sets modes while the graph runs."""

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in ("__enter__", "__exit__", "clone"):
            return BoundRuleVariable(self, name)
        written = ctx.effects.read((self.key, name))
        if written is not MISSING:
            return written
        if self.key.exists and self.key.source is not None and name in vars(self.key.value):
            return wrap_value(ctx, vars(self.key.value)[name], AttrSource(self.key.source, name))
        return class_attribute(ctx, self, self.key.cls, name)

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        if name != "prev" and not self.key.exists:
            Variable.set_attr(self, ctx, name, value)
        ctx.effects.write((self.key, name), value)

    def enter(self, ctx: Context) -> None:
        """Enter the modes."""
        raise NotImplementedError

    def exit(self, ctx: Context) -> None:
        """Leave the modes."""
        raise NotImplementedError

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name == "__enter__":
            self.enter(ctx)
            ctx.modes.push(ctx, self)
            return self if not isinstance(self, GradModeVariable) else NONE
        if name == "__exit__":
            ctx.modes.pop(ctx, self)
            self.exit(ctx)
            return NONE
        if name == "clone":
            return self.fresh()
        return self.get_attr(ctx, name).call(ctx, args, kwargs)

    def fresh(self) -> VariableTracker:
        """A new object with the same settings."""
        return dataclasses.replace(self, key=Identity(self.key.cls), source=None)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        if len(args) != 1 or kwargs:
            raise GraphBreak("BD017", f"call of a {self.key.cls.__name__} object")
        return decorate(ctx, self, args[0])


def decorate(
    ctx: Context, manager: ModeContextVariable, function: VariableTracker
) -> VariableTracker:
    """A function decorated with the manager; a generator is in the mode only while it runs."""
    if getattr(getattr(function, "code", None), "co_flags", 0) & inspect.CO_GENERATOR:
        return call_polyfill(
            ctx, polyfills.generator_in_context, [manager.get_attr(ctx, "clone"), function]
        )
    return DecoratedVariable(manager, function)


@dataclass(frozen=True, slots=True, eq=False)
class DecoratedVariable(Variable):
    """A function decorated with ``@torch.no_grad()`` or ``@torch.autocast(...)``: each call enters
    a new manager.
    """

    manager: ModeContextVariable
    function: VariableTracker

    def python_type(self) -> type:
        return types.FunctionType

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        manager = self.manager.fresh()
        manager.call_method(ctx, "__enter__", [], {})
        try:
            return self.function.call(ctx, args, kwargs)
        finally:
            manager.call_method(ctx, "__exit__", [NONE] * 3, {})

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return self.function if name == "__wrapped__" else self.function.get_attr(ctx, name)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.emitter.load_callee(lambda: gen(self.manager))
        gen(self.function)
        gen.emitter.call(1)


@dataclass(frozen=True, slots=True, eq=False)
class GradModeVariable(ModeContextVariable):
    """``no_grad()``, ``enable_grad()`` or ``set_grad_enabled(mode)``."""

    enabled: bool = False

    def enter(self, ctx: Context) -> None:
        ctx.effects.write((self.key, "prev"), ConstantVariable(ctx.modes.grad_enabled(ctx)))
        ctx.modes.set_grad(ctx, self.enabled)

    def exit(self, ctx: Context) -> None:
        ctx.modes.set_grad(ctx, self.previous(ctx))

    def previous(self, ctx: Context) -> bool:
        """The mode that leaving sets."""
        held = ctx.effects.read((self.key, "prev"))
        if held is MISSING and self.key.exists and self.key.source is not None:
            held = wrap_value(ctx, self.key.value.prev, AttrSource(self.key.source, "prev"))
        return ctx.modes.grad_enabled(ctx) if held is MISSING else held.truth(ctx)

    def fresh(self) -> VariableTracker:
        return GradModeVariable(Identity(self.key.cls), self.enabled)

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(make_grad_mode, self.key.cls, self.enabled, self.previous(gen.ctx))


def make_grad_mode(cls: Any, enabled: bool, previous: bool) -> Any:
    """A grad mode object that was not entered; calling ``set_grad_enabled`` would set the mode at
    once.
    """
    made = object.__new__(cls)
    made.prev = previous
    if cls is torch.set_grad_enabled:
        made.mode = enabled
    return made


@tracker_for(torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
def wrap_grad_mode(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value) is torch.set_grad_enabled:
        kind, (enabled,) = SetGradVariable, _guarded_settings(ctx, value, source, "mode")
    else:
        kind, enabled = GradModeVariable, type(value) is torch.enable_grad
        ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return ctx.effects.remember(
        value, kind(Identity(type(value), value, source), enabled, source=source)
    )


@dataclass(frozen=True, slots=True)
class TorchMode:
    """A mode's functions: ``enter(*settings)``, ``leave(token)``, and the constructor of its
    manager.
    """

    enter: Callable[..., Any]
    leave: Callable[[Any], None]
    make: Callable[..., Any]
    outside: Callable[[Any], tuple[TorchMode, tuple[Any, ...]] | None] = lambda manager: None
    """The mode and settings that leaving an entered manager restores, if they can be read."""


def manager_mode(make: Callable[..., Any], outside: Any = lambda manager: None) -> TorchMode:
    """The mode of a context manager without functions of its own."""

    def enter(*settings: Any) -> Any:
        manager = make(*settings)
        manager.__enter__()
        return manager

    return TorchMode(OpaqueCall(enter, f"enter_{make.__name__}"), LEAVE, make, outside)


def _leave(manager: Any) -> None:
    manager.__exit__(None, None, None)


LEAVE = OpaqueCall(_leave, "leave")
_grad_mode: Any = torch.autograd.grad_mode


def _before_autocast(manager: Any) -> tuple[TorchMode, tuple[Any, ...]] | None:
    if not hasattr(manager, "prev"):
        return None
    names = ("device", "prev_fastdtype", "prev", "prev_cache_enabled")
    return AUTOCAST, tuple(getattr(manager, name) for name in names)


AUTOCAST = TorchMode(
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
    torch.autocast,
    _before_autocast,
)
INFERENCE = TorchMode(
    _grad_mode._enter_inference_mode, _grad_mode._exit_inference_mode, torch.inference_mode
)
ANOMALY = manager_mode(torch.autograd.set_detect_anomaly)


@dataclass(frozen=True, slots=True, eq=False)
class TorchModeVariable(ModeContextVariable):
    """A manager of a mode that is entered and left in the graph."""

    mode: TorchMode
    settings: tuple[Any, ...] = ()

    def enter(self, ctx: Context) -> None:
        ctx.modes.enter(ctx, self)
        ctx.modes.note_grad(ctx, torch.is_grad_enabled())

    def exit(self, ctx: Context) -> None:
        if ctx.modes.is_entered(ctx, self):
            ctx.modes.leave(ctx)
        else:
            self._leave_outer(ctx)
        ctx.modes.note_grad(ctx, torch.is_grad_enabled())

    def _leave_outer(self, ctx: Context) -> None:
        """Leave a manager that was entered before the frame: restore the modes in the graph; the
        manager itself is left after it.
        """
        found = self.mode.outside(self.key.value) if self.key.exists else None
        if found is None or self.source is None:
            raise GraphBreak("BD017", f"leaving a {self.key.cls.__name__} entered before the frame")
        outside = self.mode.outside
        same = Answer("what leaving {} restores", outside, found)
        ctx.guards.require(self.source, GuardKind.CUSTOM, same)
        ctx.modes.leave_outer(ctx, self, TorchModeVariable(Identity(self.key.cls), *found))

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(self.mode.make, *self.settings)


def _guarded_settings(ctx: Context, value: Any, source: Source, *names: str) -> tuple[Any, ...]:
    """The attributes of an existing manager, guarded like its type."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    for name in names:
        ctx.guards.require(AttrSource(source, name), GuardKind.EQUALS, getattr(value, name))
    return tuple(getattr(value, name) for name in names)


@tracker_for(torch.inference_mode)
def wrap_inference_mode(ctx: Context, value: Any, source: Source) -> VariableTracker:
    settings = _guarded_settings(ctx, value, source, "mode")
    key = Identity(type(value), value, source)
    return ctx.effects.remember(value, TorchModeVariable(key, INFERENCE, settings, source=source))


_AUTOCAST_SETTINGS = ("device", "fast_dtype", "_enabled", "_cache_enabled")


@tracker_for(torch.autocast)
def wrap_autocast(ctx: Context, value: Any, source: Source) -> VariableTracker:
    if type(value) is not torch.autocast:
        return wrap_object(ctx, value, source)
    settings = _guarded_settings(ctx, value, source, *_AUTOCAST_SETTINGS)
    key = Identity(type(value), value, source)
    return ctx.effects.remember(value, TorchModeVariable(key, AUTOCAST, settings, source=source))


@dataclass(frozen=True, slots=True, eq=False)
class StrictVariable(ModeContextVariable):
    """``error_on_graph_break(error)``."""

    error: bool = True

    def enter(self, ctx: Context) -> None:
        ctx.effects.write((self.key, "before"), ctx.modes.strict(ctx))
        ctx.modes.set_strict(ctx, self.error)

    def exit(self, ctx: Context) -> None:
        ctx.modes.set_strict(ctx, ctx.effects.read((self.key, "before")))

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(error_on_graph_break, self.error)


@tracker_for(error_on_graph_break)
def wrap_strict(ctx: Context, value: error_on_graph_break, source: Source) -> VariableTracker:
    error, before = _guarded_settings(ctx, value, source, "error", "before")
    key = Identity(type(value), value, source)
    ctx.effects.set_initial((key, "before"), before)
    return ctx.effects.remember(value, StrictVariable(key, error, source=source))


evaluates_call(error_on_graph_break.__enter__)(
    lambda ctx, manager: manager.call_method(ctx, "__enter__", [], {})
)
evaluates_call(error_on_graph_break.__exit__)(
    lambda ctx, manager, *exception: manager.call_method(ctx, "__exit__", [], {})
)


@evaluates_code(STRICT_WRAPPER)
def call_strictly(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    manager = StrictVariable(
        Identity(error_on_graph_break), function.value.__dict__["_error_on_graph_break"]
    )
    return DecoratedVariable(manager, get_attribute(ctx, function, "__wrapped__")).call(
        ctx, args, kwargs
    )


@dataclass(frozen=True, slots=True, eq=False)
class LabelVariable(ModeContextVariable):
    """``torch.profiler.record_function(name)``, which graphs leave out."""

    args: tuple[Any, ...] = ()

    def enter(self, ctx: Context) -> None:
        pass

    def exit(self, ctx: Context) -> None:
        pass

    def fresh(self) -> VariableTracker:
        return self

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(self.key.cls, *self.args)


tracker_for(torch.autograd.profiler.record_function)(by_type(LabelVariable))


@dataclass(frozen=True, slots=True, eq=False)
class OverridesOffVariable(ModeContextVariable):
    """``torch._C.DisableTorchFunctionSubclass()``, or ``DisableTorchFunction()``, which hides calls
    from modes as well.
    """

    def enter(self, ctx: Context) -> None:
        ctx.effects.write(
            (self.key, "before"),
            (ctx.modes.set_overrides_off(ctx, True), ctx.modes.function_modes(ctx)),
        )
        if self.key.cls is torch._C.DisableTorchFunction:
            ctx.modes.set_function_modes(ctx, ())

    def exit(self, ctx: Context) -> None:
        off, modes = ctx.effects.read((self.key, "before"))
        ctx.modes.set_overrides_off(ctx, off)
        ctx.modes.set_function_modes(ctx, modes)


def make_context(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """A new mode context, or None when the class is not one."""
    if cls in (torch.no_grad, torch.enable_grad):
        mode = GradModeVariable(Identity(cls), cls is torch.enable_grad)
        return decorate(ctx, mode, args[0]) if args else mode
    if cls is torch.set_grad_enabled:
        # The constructor changes the mode.
        mode = GradModeVariable(Identity(cls), (args[0] if args else kwargs["mode"]).truth(ctx))
        ctx.effects.write((mode.key, "prev"), ConstantVariable(ctx.modes.grad_enabled(ctx)))
        ctx.modes.set_grad(ctx, mode.enabled)
        return SetGradVariable(mode.key, mode.enabled)
    if cls is error_on_graph_break:
        return StrictVariable(
            Identity(cls), constant_of(ctx, args[0], "the argument of error_on_graph_break")
        )
    if cls is torch.inference_mode:
        decorated = [
            arg
            for arg in args
            if issubclass(arg.python_type(), (types.FunctionType, types.MethodType))
        ]
        given = [arg.truth(ctx) for arg in (*args[:1], *kwargs.values())] if not decorated else []
        mode = TorchModeVariable(Identity(cls), INFERENCE, (given[0] if given else True,))
        return decorate(ctx, mode, decorated[0]) if decorated else mode
    if cls in (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly):
        values = [arg.as_constant(ctx) for arg in (*args, *kwargs.values())]
        settings = tuple(values) if cls is torch.autograd.set_detect_anomaly else (True, *values)
        return TorchModeVariable(Identity(cls), ANOMALY, settings)
    if cls in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
        return OverridesOffVariable(Identity(cls))
    if cls is torch.autograd.profiler.record_function:
        return LabelVariable(Identity(cls), tuple(constant_of(ctx, arg, "a label") for arg in args))
    if cls in (torch.autocast, torch.cpu.amp.autocast, torch.cuda.amp.autocast):
        return _make_autocast(ctx, cls, args, kwargs)
    return None


class SetGradVariable(GradModeVariable):
    """``set_grad_enabled(mode)`` called while evaluating; entering it again keeps the mode from
    before the call.
    """

    def enter(self, ctx: Context) -> None:
        ctx.modes.set_grad(ctx, self.enabled)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        # a decorator: its creation was not meant to change the mode
        ctx.modes.set_grad(ctx, self.previous(ctx))
        return GradModeVariable.call(self, ctx, args, kwargs)


def _make_autocast(ctx: Context, cls: type, args: Args, kwargs: Kwargs) -> VariableTracker:
    values, named = constants(ctx, args, kwargs)
    made: Any = cls(*values, **named)
    settings = tuple(getattr(made, name) for name in _AUTOCAST_SETTINGS)
    ctx.modes.require_autocast_defaults(ctx)
    return TorchModeVariable(Identity(torch.autocast), AUTOCAST, settings)
