"""Frames that run in eager mode instead of being captured: counters, warnings, errors."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bytecode_dynamo.config import config
from bytecode_dynamo.counters import counters
from bytecode_dynamo.errors import (
    BreakRecord,
    DynamoError,
    InvariantError,
    Place,
    RecompileError,
    Unsupported,
)
from bytecode_dynamo.guards.global_state import GlobalState, dispatch_keys, usual_keys
from bytecode_dynamo.guards.source import Scope
from bytecode_dynamo.hook.frame_hook import RUN_ONCE, SKIP, FrameView, Region

from .observing import observed
from .policy import Policy
from .recompilation import reason, where

log = logging.getLogger("bytecode_dynamo.failures")

_C: Any = torch._C
_MODES = _C.DispatchKeySet(_C.DispatchKey.Python) | _C.DispatchKeySet(
    _C.DispatchKey.PythonTLSSnapshot
)
_NONE = _C.DispatchKeySet(_C.DispatchKey.Undefined)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Something active around a call that must see every operator and would not see a graph's; a
    tracer records the call in a graph of its own.
    """

    id: str
    what: str
    traces: bool = False


def surroundings(view: FrameView) -> Surroundings | None:
    """What makes capture impossible around a frame, if anything."""
    found = _handler(view) or _dispatch_mode() or _transform() or _dispatch_keys()
    counters["fallbacks"] += found is not None and found.id != "BD002"
    return found


def _handler(view: FrameView) -> Surroundings | None:
    """Python implements an operator here, below autograd and functionalisation."""
    if not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Functionalize):  # type: ignore[attr-defined]
        return None
    traces = any(isinstance(value, torch.Tensor) and value.is_meta for value in view.locals)
    return Surroundings("BD002", "a handler of operators (``__torch_dispatch__``)", traces)


def _dispatch_mode() -> Surroundings | None:
    """A dispatch mode is active: it would not see the operators of a graph."""
    if not torch._C._len_torch_dispatch_stack():
        return None
    modes = _get_current_dispatch_mode_stack()
    if any(mode.is_infra_mode() for mode in modes):
        return Surroundings("BD017", "a tracer", traces=True)
    seeing = next((mode for mode in modes if not mode.ignore_compile_internals()), None)
    if seeing is None:
        return None
    return Surroundings("BD017", f"the dispatch mode {type(seeing).__name__}")


def _transform() -> Surroundings | None:
    """A ``torch.func`` transform wraps the tensors, or ``torch.jit`` traces them."""
    if torch._C._is_tracing():  # type: ignore[attr-defined]
        return Surroundings("BD018", "torch.jit", traces=True)
    if torch._C._are_functorch_transforms_active():
        return Surroundings("BD018", "a transform of torch.func")
    return None


def _dispatch_keys() -> Surroundings | None:
    """A dispatch-key guard excludes or adds kernels, such as autograd's."""
    usual = usual_keys(torch.is_inference_mode_enabled())
    modes = _MODES if torch._C._len_torch_dispatch_stack() else _NONE
    included, excluded = dispatch_keys()
    included, excluded = included - modes, excluded - usual.autocast
    if included == usual.included and excluded == usual.excluded:
        return None
    # A custom operator's code runs below autograd, whoever calls it.
    operator = included == usual.included and excluded == usual_keys(inference=True).excluded
    return Surroundings("BD002", "a guard that includes or excludes dispatch keys", operator)


def run_inside(policy: Policy, code: CodeType, around: Surroundings) -> Any:
    """Run in eager mode inside of a mode that must see every operator; an error under
    ``fullgraph``.
    """
    if policy.fullgraph and id(code) in policy.roots and not around.traces:
        reason = f"{code.co_qualname} is called inside of {around.what}, where no graph is captured"
        raise Unsupported(unsuitable(code, around.id, reason))
    return RUN_ONCE


def unsuitable(code: CodeType, id_: str, reason: str) -> BreakRecord:
    """The reason that a whole function is not captured."""
    place = Place(code.co_filename, code.co_firstlineno, code.co_qualname)
    return BreakRecord(id_, reason, "call it without fullgraph=True", (place,))


def refuse(region: Region, policy: Policy, view: FrameView) -> Any:
    """Under "fail_on_recompile": an error for a frame that would be compiled, eager mode for one
    without tensors.
    """
    code = view.code
    if not region.entries(code) and id(code) not in policy.roots and not has_tensors(view):
        return RUN_ONCE
    raise RecompileError(
        f"{where(code)} would have to be compiled "
        f"under the stance "
        f"'fail_on_recompile': {_what_changed(policy, view)}. Call it with such arguments before, "
        f"or set another stance"
    )


def _what_changed(policy: Policy, view: FrameView) -> str:
    """The reason that no compiled entry of the frame's code fits."""
    code = view.code
    scope = Scope(
        dict(zip(code.co_varnames, view.locals)),
        view.globals,
        view.builtins,
        dict(zip(code.co_freevars, view.closure or ())),
    )
    found = reason(policy, code, scope, GlobalState.now())
    return found or "nothing is compiled for it yet"


def has_tensors(view: FrameView) -> bool:
    """Whether tensors or modules are among the arguments, or in containers among them."""
    values: list[Any] = list(view.locals)
    for value in list(values):
        if isinstance(value, (list, tuple)):
            values += value
        elif isinstance(value, dict):
            values += value.values()
    return any(isinstance(value, (torch.Tensor, torch.nn.Module)) for value in values)


def limit_reached(policy: Policy, view: FrameView) -> Any:
    """Run in eager mode at the recompile limit, and warn once; an error under ``fullgraph``."""
    code = view.code
    if code not in policy.limited or policy.fullgraph:
        policy.limited.add(code)
        said = (
            f"{where(code)} was compiled "
            f"{config.recompile_limit} times "
            f"(config.recompile_limit), and nothing compiled fits: {_what_changed(policy, view)}"
        )
        if policy.fullgraph:
            raise RecompileError(f"{said}. Raise the limit, or pass what changes as a tensor")
        with observed(view, config.recompile_limit) as report:
            if report is not None:
                report.error, report.recompiled = said, _what_changed(policy, view)
        warnings.warn(f"bytecode_dynamo: {said}. Such calls run in eager mode", stacklevel=2)
    counters["fallbacks"] += 1
    return RUN_ONCE


def failed(policy: Policy, code: CodeType, error: Exception) -> Any:
    """Handle a defect of this package: warn and run in eager mode, or raise."""
    counters["fallbacks"] += 1
    mode = policy.on_error or config.fallback
    if mode == "error" or policy.fullgraph:
        if isinstance(error, DynamoError):
            raise error
        raise InvariantError(
            f"capture of {code.co_qualname} failed: {type(error).__name__}: {error}"
        ) from error
    log.debug("capture of %s failed", code.co_qualname, exc_info=error)
    warnings.warn(
        f"bytecode_dynamo: capture of {code.co_qualname} "
        f"({code.co_filename}:{code.co_firstlineno}) failed "
        f"({type(error).__name__}: {error}); it runs in eager mode. This is a defect of "
        f"bytecode_dynamo.",
        stacklevel=2,
    )
    return SKIP
