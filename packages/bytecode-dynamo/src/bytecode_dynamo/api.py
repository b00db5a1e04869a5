"""The public functions: optimize, disable, run, reset, explain, marks."""

from __future__ import annotations

import functools
import importlib.metadata
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch

from .builtins.registry import evaluates_call
from .builtins.torch_functions import ANSWERS
from .capture import Backend, Captured, Policy, compile_frame
from .counters import counters
from .dynamic import DYNAMIC_MARK, STATIC_MARK
from .errors import GraphBreak, UserError
from .explain import Explanation
from .hook import Activated, FrameView, Region, activate, never_intercept
from .hook_policy import DISABLED
from .show import format_graph
from .variables.constant import ConstantVariable

GROUP = "torch_dynamo_backends"
_regions: weakref.WeakSet[Region] = weakref.WeakSet()
_lock = threading.Lock()


# -- backends ---------------------------------------------------------------------------------------------------------------


def eager(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph as it is."""
    return gm.forward if not _owns_tensors(gm) else gm.__call__


def _owns_tensors(gm: torch.fx.GraphModule) -> bool:
    return False


def print_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Prints the graph, then runs it as it is."""
    print(format_graph(gm))
    return eager(gm, example_inputs)


_BACKENDS: dict[str, Backend] = {"eager": eager, "print": print_backend}


def lookup_backend(backend: str | Backend) -> Backend:
    """A backend by name (built-in, or an entry point of the group ``torch_dynamo_backends``); a callable is itself.

    Raises UserError for an unknown name or something that is neither.
    """
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise UserError(f"backend must be a name or a callable, not {type(backend).__name__}")
    known = _BACKENDS.get(backend)
    if known is not None:
        return known
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if backend not in points:
        names = ", ".join(sorted({*_BACKENDS, *points}))
        raise UserError(
            f"no backend is called {backend!r}; known: {names}. Or pass a callable (gm, example_inputs) -> callable"
        )
    return points[backend].load()


def list_backends() -> list[str]:
    """Names that ``lookup_backend`` knows."""
    return sorted({*_BACKENDS, *(point.name for point in importlib.metadata.entry_points(group=GROUP))})


# -- optimize ---------------------------------------------------------------------------------------------------------------


class Optimizer:
    """What ``optimize`` returns: a decorator for functions and modules, with a cache of its own."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.region = make_region(policy)

    def __call__(self, target: Any) -> Any:
        """A callable that runs ``target`` with capture."""
        if isinstance(target, torch.nn.Module):
            return _OptimizedModule(target, self)
        if isinstance(target, type):
            raise UserError(f"optimize needs a function, method or module, not the class {target.__name__}")
        if not callable(target):
            raise UserError(f"optimize needs something that can be called, not {type(target).__name__}")
        inner = innermost_function(target)
        if inner is not None:
            self.policy.roots.add(id(inner.__code__))
        return wrap_callable(target, self.region)


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


def innermost_function(target: Any) -> types.FunctionType | None:
    """The Python function that a call of ``target`` starts with."""
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, types.MethodType):
        target = target.__func__
    if isinstance(target, types.FunctionType):
        return target
    call = getattr(type(target), "__call__", None)  # noqa: B004 - the function itself is wanted
    return call if isinstance(call, types.FunctionType) else None


class OptimizedFunction(Activated):
    """A function whose calls are captured; it has the name, documentation and signature of the original."""


def wrap_callable(target: Callable[..., Any], region: Region) -> Callable[..., Any]:
    """A callable that activates a region around each call."""
    made = OptimizedFunction(target, region)
    functools.update_wrapper(made, target)
    return made


class _OptimizedModule:
    """A module whose calls are captured; attributes are those of the module."""

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer) -> None:
        object.__setattr__(self, "_orig_mod", module)
        object.__setattr__(self, "_call", wrap_callable(module.__call__, optimizer.region))
        optimizer.policy.roots.add(id(type(module).forward.__code__))
        optimizer.policy.roots.add(id(torch.nn.Module._wrapped_call_impl.__code__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __repr__(self) -> str:
        return f"optimized {self._orig_mod!r}"


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
        backend: a callable ``(gm, example_inputs) -> callable`` or a name (``lookup_backend``).
        fullgraph: raise Unsupported instead of breaking the graph.
        dynamic: True: sizes above 1 are symbolic from the start; False: never; None: those that change.
        on_error: "eager" or "error": what a defect of this package leads to (default: ``config.fallback``).
        on_capture: called with a ``Captured`` for each capture.

    Raises UserError for arguments that make no sense; calls may raise Unsupported and BackendCompilerFailed.
    """
    if dynamic not in (None, True, False):
        raise UserError(f"dynamic must be True, False or None, not {dynamic!r}")
    if on_error not in (None, "eager", "error"):
        raise UserError(f"on_error must be 'eager' or 'error', not {on_error!r}")
    compiler = lookup_backend(backend)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    return Optimizer(Policy(compiler, name, bool(fullgraph), dynamic, on_error, on_capture))


def reset() -> None:
    """Forget everything captured, and set the counters to zero."""
    with _lock:
        regions = list(_regions)
    for region in regions:
        region.reset()
        policy = region_policy(region)
        policy.seen.clear()
        policy.captured.clear()
        policy.limited.clear()
    counters.clear()


def region_policy(region: Region) -> Policy:
    """The policy of a region made here."""
    closure = getattr(region.callback, "__closure__", ())
    return next(cell.cell_contents for cell in closure if isinstance(cell.cell_contents, Policy))


# -- disable, run, graph_break ------------------------------------------------------------------------------------------------


@overload
def disable(fn: Callable[..., Any], recursive: bool = True) -> Callable[..., Any]: ...
@overload
def disable(fn: None = None, recursive: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def disable(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
    """Run a function in eager mode; with ``recursive=False`` the functions it calls are captured again."""
    if fn is None:
        return lambda target: disable(target, recursive)
    if not callable(fn):
        raise UserError(f"disable needs something that can be called, not {type(fn).__name__}")
    if not recursive:
        inner = innermost_function(fn)
        if inner is not None:
            never_intercept(inner)
            inner.__dict__[DISABLED] = True
        return fn

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        with activate(None):
            return fn(*args, **kwargs)

    never_intercept(disabled)
    disabled.__dict__[DISABLED] = True
    return disabled


def run(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call an optimized function with what is compiled already; nothing new is captured."""
    if isinstance(fn, _OptimizedModule):
        return run(fn._call)
    region = fn.region if isinstance(fn, Activated) else None
    if region is None:
        return fn

    def running(*args: Any, **kwargs: Any) -> Any:
        before, region.run_only = region.run_only, True
        try:
            return fn(*args, **kwargs)
        finally:
            region.run_only = before

    return running


def graph_break() -> None:
    """End the graph here; without capture it does nothing."""


@evaluates_call(graph_break)
def _graph_break(ctx: Any) -> None:
    raise GraphBreak("BD009", "graph_break()")


def is_compiling() -> bool:
    """Whether the caller is being captured (False when it runs as it is)."""
    return torch.compiler.is_compiling()


ANSWERS[is_compiling] = True
evaluates_call(is_compiling)(lambda ctx: ConstantVariable(True))


# -- marks ----------------------------------------------------------------------------------------------------------------


def mark_dynamic(t: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None) -> None:
    """Make dimensions symbolic from the first capture on. Raises IndexError for a dimension that ``t`` does not have."""
    marks: dict[int, tuple[int | None, int | None]] = dict(getattr(t, DYNAMIC_MARK, {}))
    for one in _dims(t, dim):
        if t.shape[one] < 2:
            warnings.warn(f"mark_dynamic: size {t.shape[one]} of dimension {one} is always specialised", stacklevel=2)
        marks[one] = (min, max)
    setattr(t, DYNAMIC_MARK, marks)


def mark_static(t: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Never make dimensions (None: any) symbolic. Raises IndexError for a dimension that ``t`` does not have."""
    dims = range(t.dim()) if dim is None else _dims(t, dim)
    setattr(t, STATIC_MARK, {*getattr(t, STATIC_MARK, ()), *dims})


def _dims(t: torch.Tensor, dim: int | Iterable[int]) -> list[int]:
    if not isinstance(t, torch.Tensor):
        raise UserError(f"only tensors can be marked, not {type(t).__name__}")
    found = []
    for one in (dim,) if isinstance(dim, int) else dim:
        if not -t.dim() <= one < t.dim():
            raise IndexError(f"dimension {one} of a tensor with {t.dim()} dimensions")
        found.append(one % t.dim())
    return found


# -- explain --------------------------------------------------------------------------------------------------------------


def explain(
    fn: Callable[..., Any], *, backend: str | Backend = "eager", dynamic: bool | None = None
) -> Callable[..., Explanation]:
    """``explain(fn)(*args)`` calls ``fn`` with capture and says what was captured and why graphs ended."""

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        found: list[Captured] = []
        optimizer = optimize(backend, dynamic=dynamic, on_capture=found.append)
        result = optimizer(fn)(*args, **kwargs)
        return Explanation.of(found, result)

    return explained


__all__ = [
    "Optimizer",
    "disable",
    "eager",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "reset",
    "run",
]
