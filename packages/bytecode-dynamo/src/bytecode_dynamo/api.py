"""Capturing functions and modules: optimize, run, reset, explain."""

from __future__ import annotations

import copy
import functools
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bytecode_dynamo.capture.callback import compile_frame
from bytecode_dynamo.capture.policy import Backend, Captured, Policy
from bytecode_dynamo.capture.roots import MODULE_CALL, captured_function, is_graphed
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.hook.frame_hook import Activated, FrameView, Region
from bytecode_dynamo.hook.policy import DISABLED
from bytecode_dynamo.state.protocol import wrap_value
from bytecode_dynamo.variables.wrap import tracker_for

from .backends import lookup_backend
from .compiled_module import CompiledModule, compiled_module
from .counters import counters
from .errors import UserError
from .explain import Explanation
from .sharing import Targets, forget_optimizers, optimizer_for

_regions: weakref.WeakSet[Region] = weakref.WeakSet()
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # another thread may hold the lock


# -- optimize --------------------------------------------------------------------------------------


class Optimizer:
    """The result of ``optimize``: a decorator for functions and modules, with its own cache, except
    for what another one with equal options has compiled. Pickles have the options.
    """

    def __init__(self, policy: Policy, options: Mapping[str, Any]) -> None:
        self.policy = policy
        self.options = options
        self.region = make_region(policy)
        self.targets = Targets()
        self.precompiled: list[tuple[Any, Any]] = []
        """Targets, with what the backend returned when they were precompiled."""
        self._callers: weakref.WeakValueDictionary[int, types.FunctionType] = (
            weakref.WeakValueDictionary()
        )

    def __reduce__(self) -> Any:
        return _optimizer, (dict(self.options),)

    def anew(self) -> Optimizer:
        """An optimizer with these options and a cache of its own."""
        return _optimizer(self.options)

    @property
    def is_shared(self) -> bool:
        """Whether others with equal options may use what this one compiled."""
        return self.policy.on_capture is None

    def has_options_of(self, other: Optimizer) -> bool:
        """Whether the options are equal: backends by ``==``, so functions by identity."""
        backend = other.policy.backend
        return self.policy.backend == backend and all(
            self.options[name] == other.options[name] for name in _COMPARED
        )

    def __call__(self, target: Any) -> Any:
        """A callable that runs ``target`` with capture; a class is itself, and its instances run
        so.
        """
        if isinstance(target, CompiledModule):
            target = target._orig_mod
        if isinstance(target, type):
            return self._capture_calls_of_instances(target)
        if not callable(target):
            raise UserError(
                f"optimize needs something that can be called, not {type(target).__name__}"
            )
        with _lock:
            optimizer = optimizer_for(target, self)
        if isinstance(target, torch.nn.Module):
            return optimizer._of_module(target)
        return optimizer._of_function(target)

    def precompile(self, target: Any, *args: Any, **kwargs: Any) -> None:
        """Lets the backend compile a target for arguments like these, without running it.

        Raises UserError for a backend that can't, and what the backend raises (contract B10).
        """
        backend = self.policy.backend
        precompile = getattr(backend, "precompile", None)
        if precompile is None:
            raise UserError(
                f"the backend {self.policy.backend_name} can't precompile: it has no method "
                f"precompile (contract B10)"
            )
        found = precompile(target, args, kwargs, dynamic=self.policy.dynamic)
        self.precompiled.append((target, found))

    def report(self) -> Explanation:
        """What was captured so far, with the reasons of breaks and, where they were asked for by a
        log, an observer or ``explain``, of recompiles.
        """
        return Explanation.of_kept(self.policy)

    def _of_module(self, module: torch.nn.Module) -> Any:
        policy = self.policy
        policy.modules[:] = [one for one in policy.modules if one() not in (None, module)]
        policy.modules.append(weakref.ref(module))
        policy.roots.add(id(MODULE_CALL))
        return compiled_module(module, self)

    def _of_function(self, target: Callable[..., Any]) -> OptimizedFunction:
        inner, whole = captured_function(target), self.policy.fullgraph
        called = target
        if inner is None or (whole and not is_graphed(inner)):
            # Built-ins have no frame, and library functions are not captured on their own: capture
            # the call instead. The same holds for functions that are never captured; under
            # fullgraph, evaluating the call raises the error.
            called = inner = self._caller(target)
            if whole:
                inner.__dict__.pop(DISABLED, None)
        self.policy.roots.add(id(inner.__code__))
        return OptimizedFunction(target, called, self)

    def _caller(self, target: Callable[..., Any]) -> types.FunctionType:
        found = self._callers.get(id(target))
        if found is None:
            found = self._callers[id(target)] = _caller_of(target)
        return found

    def _capture_calls_of_instances(self, cls: type) -> type:
        name = "forward" if issubclass(cls, torch.nn.Module) else "__call__"
        method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if not isinstance(method, types.FunctionType):
            raise UserError(
                f"optimize needs something that can be called; instances of {cls.__name__} have no "
                f"{name} in Python"
            )
        setattr(cls, name, self(method))
        return cls


def _caller_of(target: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__annotations__ = {}
    name = getattr(target, "__qualname__", type(target).__qualname__)
    call.__code__ = call.__code__.replace(co_filename=f"<call of {name}>")
    return functools.update_wrapper(call, target)  # type: ignore[return-value]


def make_region(policy: Policy) -> Region:
    """A region whose frames are captured by a policy."""
    region = Region(None, policy.backend_name)
    reference = weakref.ref(region)

    def callback(view: FrameView) -> Any:
        owner = reference()
        assert owner is not None
        return compile_frame(owner, policy, view)

    region.callback = callback
    with _lock:
        _regions.add(region)
    return region


_OF_FUNCTIONS = (
    "__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__", "__type_params__",
    "__self__", "__func__",
    "__annotations__",
)  # fmt: skip


class OptimizedFunction(Activated):
    """A function whose calls are captured; it has the name, documentation and signature of the
    original. It is copied and pickled like the original: what is the global of its name is that
    global, anything else is compiled again.
    """

    __slots__ = ("optimizer", "original")

    def __new__(
        cls, original: Callable[..., Any], called: Callable[..., Any], optimizer: Optimizer
    ) -> OptimizedFunction:
        """``called`` is what calls run: the original, or a function that calls it."""
        made: Any = super().__new__(cls, called, optimizer.region)
        made.original, made.optimizer = original, optimizer
        functools.update_wrapper(made, called)
        made.__wrapped__ = original
        return made

    def __getattr__(self, name: str) -> Any:
        """Attributes that ``inspect`` reads, from the original."""
        if name not in _OF_FUNCTIONS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.function, name)

    def __copy__(self) -> OptimizedFunction:
        return self._copied(copy.copy(self.original))

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedFunction:
        return self._copied(copy.deepcopy(self.original, memo))

    def precompile(self, *args: Any, **kwargs: Any) -> None:
        """See ``Optimizer.precompile``."""
        self.optimizer.precompile(self.original, *args, **kwargs)

    def report(self) -> Explanation:
        """See ``Optimizer.report``."""
        return self.optimizer.report()

    def _copied(self, original: Callable[..., Any]) -> OptimizedFunction:
        return self if original is self.original else self.optimizer.anew()(original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = getattr(self, "__qualname__", None)
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        return name if found is self else (self.optimizer, (self.original,))


@tracker_for(OptimizedFunction)
def wrap_optimized(ctx: Any, value: OptimizedFunction, source: Source) -> Any:
    """A function that is optimized again inside of a graph belongs to that graph."""
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    return wrap_value(ctx, value.function, AttrSource(source, "function"))


def optimize(
    backend: str | Backend = "eager",
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    on_error: str | None = None,
    on_capture: Callable[[Captured], None] | None = None,
) -> Optimizer:
    """A decorator that captures functions and modules into graphs for a backend.

    Args:
        backend: a callable ``(gm, example_inputs) -> callable`` or a name (``lookup_backend``). One
            whose attribute ``symbolic_floats`` is False gets no graphs with float inputs: a Python
                float that changes makes a graph per value.
            One whose ``host_effects`` is False gets no calls that depend on being run in their
                place: they break the graph.
        fullgraph: raise Unsupported instead of breaking the graph; what ``item()`` gives is then a
            symbol of the graph.
        dynamic: True: sizes above 1 are symbolic from the start; False: never; None: those that
            change.
        on_error: "eager" or "error": what a defect of this package leads to (default:
            ``config.fallback``).
        on_capture: called with a ``Captured`` for each capture.

    Raises UserError for arguments that make no sense; calls may raise Unsupported and
    BackendCompilerFailed.
    """
    if dynamic not in (None, True, False):
        raise UserError(f"dynamic must be True, False or None, not {dynamic!r}")
    if on_error not in (None, "eager", "error"):
        raise UserError(f"on_error must be 'eager' or 'error', not {on_error!r}")
    compiler = lookup_backend(backend)
    floats, effects = (
        bool(getattr(compiler, name, True)) for name in ("symbolic_floats", "host_effects")
    )
    name = (
        backend
        if isinstance(backend, str)
        else getattr(backend, "__name__", type(backend).__name__)
    )
    given = dict(
        backend=backend,
        fullgraph=bool(fullgraph),
        dynamic=dynamic,
        on_error=on_error,
        on_capture=on_capture,
    )
    return Optimizer(
        Policy(compiler, name, bool(fullgraph), dynamic, on_error, on_capture, floats, effects),
        given,
    )


_COMPARED = ("fullgraph", "dynamic", "on_error", "on_capture")


def _optimizer(options: Mapping[str, Any]) -> Optimizer:
    return optimize(**options)


def reset() -> None:
    """Forget everything captured, and set the counters to zero."""
    with _lock:
        regions = list(_regions)
        forget_optimizers()
    for region in regions:
        region.reset()
        policy = region_policy(region)
        policy.seen.clear()
        policy.captured.clear()
        policy.limited.clear()
        policy.kept.clear()
        policy.careful.clear()
    counters.clear()


def region_policy(region: Region) -> Policy:
    """The policy of a region created by this package."""
    closure = getattr(region.callback, "__closure__", ())
    return next(cell.cell_contents for cell in closure if isinstance(cell.cell_contents, Policy))


def precompiled(compiled: Any) -> list[Any]:
    """What the backend returned for each ``precompile`` call of a compiled function or module.

    Raises UserError for anything else.
    """
    if isinstance(compiled, CompiledModule):
        target, optimizer = compiled._orig_mod, compiled._bytecode_dynamo_optimizer
    elif isinstance(compiled, OptimizedFunction):
        target, optimizer = compiled.original, compiled.optimizer
    else:
        raise UserError(f"not a compiled function or module, but a {type(compiled).__name__}")
    return [found for known, found in optimizer.precompiled if known == target]


def run(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call an optimized function with its compiled entries; nothing new is captured."""
    call = fn._bytecode_dynamo_call if isinstance(fn, CompiledModule) else fn
    region = call.region if isinstance(call, Activated) else None
    if region is None:
        return fn

    def running(*args: Any, **kwargs: Any) -> Any:
        before, region.run_only = region.run_only, True
        try:
            return fn(*args, **kwargs)
        finally:
            region.run_only = before

    return running


# -- explain ---------------------------------------------------------------------------------------


def explain(
    fn: Callable[..., Any], *, backend: str | Backend = "eager", dynamic: bool | None = None
) -> Callable[..., Explanation]:
    """``explain(fn)(*args)`` calls ``fn`` with capture and says what was captured and why graphs
    ended.

    ``backend`` and ``dynamic`` as ``optimize`` takes them. Nothing that was captured before is
    used.
    """

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        found: list[Captured] = []
        optimizer = optimize(backend, dynamic=dynamic, on_capture=found.append)
        result = optimizer(fn)(*args, **kwargs)
        return Explanation.of(found, result)

    return explained
