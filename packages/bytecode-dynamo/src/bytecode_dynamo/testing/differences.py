"""Where two values differ: containers, objects, exceptions and tensors, part by part."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import itertools
import logging
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

MOST_ITEMS = 50
NAMESPACE = "tested_program_"  # begins the names of namespaces; a text that has it is not compared

Equal = Callable[[torch.Tensor, torch.Tensor], bool]


def equal_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape have the same elements; NaN equals NaN."""
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def difference(a: Any, b: Any, where: str = "result", *, equal: Equal = equal_values) -> str | None:
    """Where two values differ, in a line that begins with ``where``; None when they are alike.

    Alike are objects of classes of one name with alike attributes, slots, keys and items in one
    order, shared in the same places; functions and classes of one qualified name; exceptions with
    alike arguments, causes, contexts and notes; tensors of one dtype, shape, strides, device and
    ``requires_grad`` whose values are ``equal``. Iterators are consumed.
    """
    return _difference(a, b, where, {}, equal)


def _difference(a: Any, b: Any, where: str, seen: dict[int, Any], equal: Equal) -> str | None:
    if isinstance(a, (type, types.FunctionType)):
        if getattr(b, "__qualname__", None) == a.__qualname__:
            return None
        return f"{where}: {a} and {b}"
    if id(a) in seen:
        return None if seen[id(a)][1] is b else f"{where}: the same object in one, not in the other"
    if type(a).__qualname__ != type(b).__qualname__:
        return f"{where}: {type(a).__qualname__} and {type(b).__qualname__} ({a!r} and {b!r})"
    if isinstance(a, torch.Tensor):
        return _difference_of_tensors(a, b, where, equal)
    if isinstance(a, str) and NAMESPACE in a:
        return None
    if type(a) in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        torch.dtype,
        torch.device,
    ) or isinstance(a, enum.Enum):
        return None if repr(a) == repr(b) else f"{where}: {a!r} and {b!r}"
    if not isinstance(a, tuple):
        seen[id(a)] = (a, b)
    for name, left, right in _parts(a, b, where):
        if found := _difference(left, right, name, seen, equal):
            return found
    return None


def _difference_of_tensors(
    a: torch.Tensor, b: torch.Tensor, where: str, equal: Equal
) -> str | None:
    for name in ("dtype", "shape", "requires_grad", "device"):
        if getattr(a, name) != getattr(b, name):
            return f"{where}.{name}: {getattr(a, name)} and {getattr(b, name)}"
    if a.stride() != b.stride():
        return f"{where}.stride(): {a.stride()} and {b.stride()}"
    with torch._C.DisableTorchFunctionSubclass():
        return None if equal(a.detach(), b.detach()) else f"{where}: {a} and {b}"


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
    elif isinstance(
        a,
        (
            collections.abc.Sequence,
            collections.abc.ValuesView,
            collections.abc.KeysView,
            collections.deque,
        ),
    ):
        yield f"len({where})", len(a), len(b)
        yield from ((f"{where}[{k}]", left, right) for k, (left, right) in enumerate(zip(a, b)))
    elif isinstance(a, collections.abc.Iterator) and not hasattr(a, "__dict__"):
        yield (
            f"list({where})",
            list(itertools.islice(a, MOST_ITEMS)),
            list(itertools.islice(b, MOST_ITEMS)),
        )
    elif isinstance(a, types.CellType):
        yield f"{where}.cell_contents", a.cell_contents, b.cell_contents
    if hasattr(a, "__dict__") and not isinstance(a, (type, types.ModuleType)):
        yield f"vars({where})", vars(a), vars(b)
    for cls in inspect.getmro(type(a)):
        for name in vars(cls).get("__slots__", ()):
            if name not in ("__dict__", "__weakref__"):
                yield f"{where}.{name}", getattr(a, name, None), getattr(b, name, None)
