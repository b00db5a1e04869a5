"""An oracle for capture: a program captured against eager mode, down to its exceptions, effects and
their order.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import linecache
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytecode_dynamo.api import optimize, reset
from bytecode_dynamo.backends import lookup_backend
from bytecode_dynamo.config import config

from .differences import NAMESPACE, Equal, difference, equal_values

Make = Callable[[], Sequence[Any]]
HIDDEN = (
    types.ModuleType,
    property,
    classmethod,
    staticmethod,
    types.MemberDescriptorType,
    functools.cached_property,
)
_numbers = itertools.count()

with warnings.catch_warnings():  # torch says this once in a process, which would be in eager mode
    warnings.simplefilter("ignore")
    float(torch.ones((), requires_grad=True))


def check_against_eager(
    f: Callable[..., Any],
    make: Make,
    *,
    compiled: Callable[..., Any] | None = None,
    calls: int = 2,
    seed: int = 0,
    equal: Equal = equal_values,
) -> None:
    """Raises AssertionError unless ``compiled`` behaves like ``f``; while it runs, a defect of
    capture raises, too.

    Args:
        f: the program.
        make: makes one fresh list of arguments.
        compiled: ``optimize("eager")(f)`` by default; or the same program of a namespace of its
            own, as ``load`` makes it.
        calls: how often both are called, each time with fresh arguments.
        seed: of torch's random generator, set before the arguments of each call are made.
        equal: whether two tensors of one dtype and shape are equal; exact by default, for a backend
            that rounds otherwise a tolerance:
                ``lambda a, b: torch.allclose(a, b, equal_nan=True)``.

    Compared by ``difference``: results, exceptions with their causes and contexts, what is printed
    and warned, what became of the arguments, and the global variables of modules that ``load``
    made, with those of their classes.
    """
    run = optimize("eager")(f) if compiled is None else compiled
    for call in range(calls):
        with config.patch(fallback="error", verify=True):
            expected, found = _observe(f, make, seed + call), _observe(run, make, seed + call)
        for what in expected:
            differing = difference(expected[what], found[what], what, equal=equal)
            assert differing is None, f"call {call}: {differing}"


def check_source(
    text: str,
    make: Make,
    *,
    name: str = "f",
    backend: Any = "eager",
    calls: int = 2,
    equal: Equal = equal_values,
    capture: Callable[..., Any] | None = None,
) -> None:
    """``check_against_eager`` of the function ``name`` of a program's text, run in two namespaces
    of its own.

    Args: ``make``, ``calls`` and ``equal`` as there; ``backend`` as ``optimize`` takes it;
    ``capture(function, backend)`` takes the place of ``optimize``. Captured code of all programs is
    forgotten before (``reset``).
    """
    eager, captured = load(text), load(text)
    reset()
    try:
        function = getattr(captured, name)
        if capture is None:
            compiled = optimize(backend)(function)
        else:
            compiled = capture(function, lookup_backend(backend))
        with config.patch(recompile_limit=200):
            check_against_eager(
                getattr(eager, name), make, compiled=compiled, calls=calls, equal=equal
            )
    finally:
        del sys.modules[eager.__name__], sys.modules[captured.__name__]


def load(text: str, filename: str = "<program>") -> types.ModuleType:
    """A module of its own from a program's text, whose lines tracebacks show under ``filename``;
    loaded anew each time.
    """
    name = f"{NAMESPACE}{next(_numbers)}"
    module = sys.modules[name] = types.ModuleType(name)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def _observe(function: Callable[..., Any], make: Make, seed: int) -> dict[str, Any]:
    """What a call raises, returns, prints and warns, and what it does to its arguments and its
    namespace.
    """
    torch.manual_seed(seed)
    arguments = list(make())
    out, result, error = io.StringIO(), None, None
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
    return {
        "exception": error,
        "result": result,
        "stdout": out.getvalue(),
        "warnings": [str(item.message) for item in caught],
        "arguments": arguments,
        "globals": _variables(function),
    }


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    """The data of the function's namespace, if it is one of ``load``, and of its classes."""
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    found: dict[str, Any] = {}
    if not namespace.get("__name__", "").startswith(NAMESPACE):
        return found
    for name, value in namespace.items():
        if isinstance(value, type) and value.__module__ == namespace["__name__"]:
            found[name] = {key: held for key, held in vars(value).items() if _is_data(key, held)}
        elif _is_data(name, value):
            found[name] = value
    return found


def _is_data(name: str, value: Any) -> bool:
    hidden = name.startswith("__") or name in ("_abc_impl", "_abc_data", "annotations")
    return not hidden and not callable(value) and not isinstance(value, HIDDEN)
