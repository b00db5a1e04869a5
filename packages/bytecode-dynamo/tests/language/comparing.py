"""Running programs of a namespace in eager mode and of a second, identical namespace with capture, and comparing everything."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import inspect
import io
import itertools
import logging
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bytecode_dynamo as bd
import torch

MOST_ITEMS = 50
HIDDEN = (types.ModuleType, property, classmethod, staticmethod, types.MemberDescriptorType, functools.cached_property)
_numbers = itertools.count()

with warnings.catch_warnings():  # torch says this once in a process, which would be in eager mode
    warnings.simplefilter("ignore")
    float(torch.ones((), requires_grad=True))


def load(path: Path) -> types.ModuleType:
    """A fresh copy of a module."""
    name = f"language_{path.stem}_{next(_numbers)}"
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)  # not imported: files change within a second
    return module


def programs(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of a module whose first parameter is called ``x``."""
    found: dict[str, Callable[..., Any]] = {}
    for name, value in vars(module).items():
        code = getattr(inspect.unwrap(value) if callable(value) else None, "__code__", None)
        if (
            code is not None
            and not name.startswith("_")
            and value.__module__ == module.__name__
            and code.co_varnames[:1] == ("x",)
        ):
            found[name] = value
    return found


def outcome(function: Callable[..., Any], arguments: list[Any]) -> tuple[Any, Any, str, list[str]]:
    """What a call returns, what it raises, what it prints and what it warns."""
    out, result, error = io.StringIO(), None, None
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
    return result, error, out.getvalue(), [str(item.message) for item in caught]


def difference(a: Any, b: Any, where: str = "result", seen: dict[int, Any] | None = None) -> str | None:
    """Where two values differ, in a line; None when they are alike."""
    seen = {} if seen is None else seen
    if isinstance(a, (type, types.FunctionType)):
        return None if getattr(b, "__qualname__", None) == a.__qualname__ else f"{where}: {a} and {b}"
    if id(a) in seen:
        return None if seen[id(a)][1] is b else f"{where}: the same object in one, not in the other"
    if type(a).__qualname__ != type(b).__qualname__:
        return f"{where}: {type(a).__qualname__} and {type(b).__qualname__} ({a!r} and {b!r})"
    if isinstance(a, torch.Tensor):
        return _difference_of_tensors(a, b, where)
    if isinstance(a, str) and "language_" in a:
        return None
    if type(a) in (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device) or isinstance(a, enum.Enum):
        return None if repr(a) == repr(b) else f"{where}: {a!r} and {b!r}"
    if not isinstance(a, tuple):
        seen[id(a)] = (a, b)
    for name, left, right in _parts(a, b, where):
        if found := difference(left, right, name, seen):
            return found
    return None


def _difference_of_tensors(a: torch.Tensor, b: torch.Tensor, where: str) -> str | None:
    for name in ("dtype", "shape", "requires_grad", "device"):
        if getattr(a, name) != getattr(b, name):
            return f"{where}.{name}: {getattr(a, name)} and {getattr(b, name)}"
    if a.stride() != b.stride():
        return f"{where}.stride(): {a.stride()} and {b.stride()}"
    with torch._C.DisableTorchFunctionSubclass():
        return None if torch.equal(a.detach().nan_to_num(), b.detach().nan_to_num()) else f"{where}: {a} and {b}"


def _parts(a: Any, b: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, (types.ModuleType, torch.Generator, typing.TypeVar, logging.Logger)):
        return
    if isinstance(a, dict):
        yield f"keys of {where}", list(a), list(b)
        yield from ((f"{where}[{key!r}]", value, b[key]) for key, value in a.items() if key in b)
    elif isinstance(a, (set, frozenset)):
        yield where, sorted(map(repr, a)), sorted(map(repr, b))
    elif isinstance(a, BaseException):
        yield f"{where}.args", a.args, b.args
        yield f"{where}.__cause__", a.__cause__, b.__cause__
        yield f"{where}.__context__", a.__context__, b.__context__
        yield f"{where}.__notes__", getattr(a, "__notes__", None), getattr(b, "__notes__", None)
    elif isinstance(a, (collections.abc.Sequence, collections.abc.ValuesView, collections.abc.KeysView, collections.deque)):
        yield f"len({where})", len(a), len(b)
        yield from ((f"{where}[{k}]", left, right) for k, (left, right) in enumerate(zip(a, b)))
    elif isinstance(a, collections.abc.Iterator) and not hasattr(a, "__dict__"):
        pair = (list(itertools.islice(one, MOST_ITEMS)) for one in (a, b))
        yield f"list({where})", *pair
    elif isinstance(a, types.CellType):
        yield f"{where}.cell_contents", a.cell_contents, b.cell_contents
    if hasattr(a, "__dict__") and not isinstance(a, (type, types.ModuleType)):
        yield f"vars({where})", vars(a), vars(b)
    for cls in type(a).__mro__:
        for name in cls.__dict__.get("__slots__", ()):
            if name not in ("__dict__", "__weakref__"):
                yield f"{where}.{name}", getattr(a, name, None), getattr(b, name, None)


def variables(module: types.ModuleType) -> dict[str, Any]:
    """The data of a namespace, that of its classes too."""
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            found[name] = {key: held for key, held in vars(value).items() if _is_data(key, held)}
        elif _is_data(name, value):
            found[name] = value
    return found


def _is_data(name: str, value: Any) -> bool:
    hidden = name.startswith("__") or name in ("_abc_impl", "_abc_data", "annotations")
    return not hidden and not callable(value) and not isinstance(value, HIDDEN)


def check_program(
    eager: types.ModuleType, captured: types.ModuleType, name: str, calls: int = 2, backend: Any = "eager"
) -> None:
    """Call a program several times in both namespaces; results, effects and the number of graphs must be as expected."""
    plain = programs(eager)[name]
    region = bd.optimize(backend)(programs(captured)[name])
    expected = getattr(plain, "graphs", 1)
    code = inspect.unwrap(plain).__code__
    for call in range(calls):
        inputs = []
        for _ in range(2):
            x = torch.arange(6.0).reshape(2, 3) - 1.5
            inputs.append([x, []][: code.co_argcount] if code.co_argcount < 3 else [x, [], {"k": x + 1, "n": 2}])
        random_state = torch.get_rng_state()
        left = outcome(plain, inputs[0])
        torch.set_rng_state(random_state)
        right = outcome(region, inputs[1])
        for what, a, b in (
            *[(what, left[k], right[k]) for k, what in ((1, "exception"), (0, "result"), (2, "stdout"), (3, "warnings"))],
            ("arguments", *inputs),
            ("globals", variables(eager), variables(captured)),
        ):
            found = difference(a, b, what)
            assert found is None, f"call {call}: {found}"
    graphs, breaks = bd.counters["graphs"], bd.counters["graph_breaks"]
    assert not bd.counters["fallbacks"], "capture failed"
    assert (graphs, breaks) == (expected, max(expected - 1, 0)) or getattr(plain, "any_graphs", False), (
        f"{graphs} graphs and {breaks} breaks, expected {expected}"
    )
