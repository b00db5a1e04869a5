"""The public names of ``torch.compiler``, for programs that are moved here.

Each does what its namesake does for ``torch.compile``. A name of ``torch.compiler`` that is missing
raises AttributeError with the reason and what to use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import bytecode_dynamo
from bytecode_dynamo import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
    register_backend,
)
from torch.compiler import is_dynamo_compiling, is_exporting, nested_compile_region

from .api import compile, reset
from .backends import DEBUGGING, get_default_backend, set_default_backend
from .backends import list_backends as _all_backends
from .errors import UsageError

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable",
    "disallow_in_graph", "get_default_backend", "is_compiling", "is_dynamo_compiling",
    "is_exporting", "list_backends", "mark_dynamic", "mark_static", "mark_unbacked",
    "maybe_mark_dynamic", "nested_compile_region", "register_backend", "reset",
    "set_default_backend", "set_stance", "substitute_in_graph",
]  # fmt: skip

_GUARDS = (
    "guards can't be left out: a graph would run where it is wrong. A report shows what checking "
    "them costs; mark_static and set_stance('fail_on_recompile') stop recompilations"
)
_MISSING = {
    "keep_portable_guards_unsafe": _GUARDS,
    "keep_tensor_guards_unsafe": _GUARDS,
    "skip_all_guards_unsafe": _GUARDS,
    "skip_guard_on_all_nn_modules_unsafe": _GUARDS,
    "skip_guard_on_globals_unsafe": _GUARDS,
    "skip_guard_on_inbuilt_nn_modules_unsafe": _GUARDS,
    "config": "settings are torchstrata.config and bytecode_dynamo.config",
    "load_cache_artifacts": "use `python -m torchstrata cache import FILE`",
    "load_compiled_function": "use torchstrata.load",
    "save_cache_artifacts": "use `python -m torchstrata cache export FILE`",
    "set_enable_guard_collectives": "each rank checks its own guards",
    "wrap_numpy": "graphs end at calls of NumPy; write them with torch",
}
"""The names of torch.compiler without a namesake, and why."""


def cudagraph_mark_step_begin() -> None:
    """Does nothing: replays never overwrite results that the program holds, so that it does not
    matter where an iteration begins.
    """


def list_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """The names that ``compile(backend=...)`` takes, registered and installed ones among them;
    without "eager", "aot_eager" and "print", whose tag is "debug", unless ``exclude_tags`` is
    without it.
    """
    left_out = DEBUGGING if "debug" in (exclude_tags or ()) else ()
    return [name for name in _all_backends() if name not in left_out]


def set_stance(
    stance: str = "default",
    *,
    skip_guard_eval_unsafe: bool = False,
    force_backend: str | Callable[..., Any] | None = None,
) -> bytecode_dynamo.set_stance:
    """``torchstrata.set_stance``: how compiled functions run, from now on, for a ``with`` block, or
    for calls of the function that is decorated.

    Raises UsageError for the other two arguments: guards can't be left out, and a compiled function
    keeps its backend.
    """
    if skip_guard_eval_unsafe:
        raise UsageError(f"skip_guard_eval_unsafe: {_GUARDS}")
    if force_backend is not None:
        raise UsageError(
            "force_backend: a compiled function keeps its backend; use set_default_backend before "
            "compile(), or pass backend= to it"
        )
    return bytecode_dynamo.set_stance(stance)


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``torchstrata.substitute_in_graph``. Calls with constants are always evaluated while
    capturing, whatever ``can_constant_fold_through`` is.
    """
    return bytecode_dynamo.substitute_in_graph(
        original_fn, skip_signature_check=skip_signature_check
    )


def __getattr__(name: str) -> Any:
    reason = _MISSING.get(name)
    said = f"torchstrata.compiler has no {name!r}" + (f": {reason}" if reason else "")
    raise AttributeError(said)
