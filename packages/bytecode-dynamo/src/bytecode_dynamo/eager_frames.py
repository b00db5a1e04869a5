"""Frames that are not captured but run in eager mode, or must not: what is counted, said and raised."""

from __future__ import annotations

import logging
import warnings
from types import CodeType
from typing import Any

import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .config import config
from .counters import counters
from .errors import DynamoError, InvariantError, RecompileError
from .guards import explain_failure
from .hook import RUN_ONCE, SKIP, FrameView, Region
from .policy import Policy
from .source import Scope

log = logging.getLogger("bytecode_dynamo")


def under_selective_checkpoint() -> bool:
    """Whether a dispatch mode of torch's keeps the results of all calls: it would keep those that capture makes."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    kinds = (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode)
    return any(isinstance(mode, kinds) for mode in _get_current_dispatch_mode_stack())


def under_transform() -> bool:
    """Whether a transform of ``torch.func`` wraps the tensors or ``torch.jit`` traces them, which no graph is captured for."""
    active: bool = torch._C._are_functorch_transforms_active() or torch._C._is_tracing()  # type: ignore[attr-defined]
    counters["fallbacks"] += active
    return active


def in_dispatch_handler() -> bool:
    """Whether torch has handed an operator over to Python: what runs now is below autograd and functionalisation."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Functionalize)  # type: ignore[attr-defined]


def refuse(region: Region, policy: Policy, view: FrameView) -> Any:
    """Under "fail_on_recompile": an error for a frame that would be compiled, eager mode for one without tensors."""
    code = view.code
    if not region.entries(code) and id(code) not in policy.roots and not has_tensors(view):
        return RUN_ONCE
    scope = Scope(
        dict(zip(code.co_varnames, view.locals)), view.globals, view.builtins, dict(zip(code.co_freevars, view.closure or ()))
    )
    earlier = policy.captured.get(code)
    why = explain_failure(*earlier[-1], scope) if earlier else "nothing is compiled for it yet"
    raise RecompileError(
        f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) would have to be compiled under the stance "
        f"'fail_on_recompile': {why}. Call it with such arguments before, or set another stance"
    )


def has_tensors(view: FrameView) -> bool:
    """Whether tensors or modules are among the arguments, or in containers among them."""
    values: list[Any] = list(view.locals)
    for value in list(values):
        if isinstance(value, (list, tuple)):
            values += value
        elif isinstance(value, dict):
            values += value.values()
    return any(isinstance(value, (torch.Tensor, torch.nn.Module)) for value in values)


def limit_reached(policy: Policy, code: CodeType) -> Any:
    """Run in eager mode from now on, and say so once."""
    if code not in policy.limited:
        policy.limited.add(code)
        warnings.warn(
            f"bytecode_dynamo: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) was compiled "
            f"{config.recompile_limit} times (config.recompile_limit); it runs in eager mode when no compiled version fits",
            stacklevel=2,
        )
    counters["fallbacks"] += 1
    return RUN_ONCE


def failed(policy: Policy, code: CodeType, error: Exception) -> Any:
    """A defect of this package: eager mode and a warning, or the error."""
    counters["fallbacks"] += 1
    mode = policy.on_error or config.fallback
    if mode == "error" or policy.fullgraph:
        if isinstance(error, DynamoError):
            raise error
        raise InvariantError(f"capture of {code.co_qualname} failed: {type(error).__name__}: {error}") from error
    log.debug("capture of %s failed", code.co_qualname, exc_info=error)
    warnings.warn(
        f"bytecode_dynamo: capture of {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) failed "
        f"({type(error).__name__}: {error}); it runs in eager mode. This is a defect of bytecode_dynamo.",
        stacklevel=2,
    )
    return SKIP
