"""What tells apart the calls of a function whose entries are likely to be different ones, as text.

It names a place and proves nothing: that an entry fits is for its guards to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .contents import Contents

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OF_MODULES = ("_parameters", "_buffers", "_modules")
DEEPEST, LONGEST = 4, 64


def describe_arguments(values: Any, contents: Contents) -> str:
    """Arguments and what a closure holds. Classes and modes of the program do not see the reads."""
    with torch._C.DisableTorchFunction():
        return "\n".join(_lines(values, contents, 0))


def _lines(value: Any, contents: Contents, depth: int) -> Iterator[str]:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        yield _tensor(value)
    elif isinstance(value, torch.nn.Module):
        yield from _module(value, contents)
    elif kind in _PLAIN:
        yield f"{kind.__name__} {value!r}"
    elif kind in (tuple, list, dict) and depth < DEEPEST:
        yield f"{kind.__name__} {len(value)}"
        items = value.items() if kind is dict else enumerate(value)
        for _, (key, item) in zip(range(LONGEST), items):
            if type(key) in _PLAIN:
                yield f"[{key!r}]"
            yield from _lines(item, contents, depth + 1)
    else:
        yield f"{kind.__module__}:{kind.__qualname__}"


def _tensor(value: torch.Tensor) -> str:
    if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"{type(value).__qualname__} {value.dtype} {value.layout}"
    sizes = f"{tuple(value.shape)} {value.stride()}"
    grad = (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg())
    return f"{value.dtype} {value.device.type} {sizes} {grad} {_marks(value)}"


def _marks(value: torch.Tensor) -> list[str]:
    """The attributes of a tensor, with the dimensions that are marked."""
    held = getattr(value, "__dict__", None) or {}
    return [
        f"{name}={sorted(marks.items() if isinstance(marks, dict) else marks, key=repr)}"
        if "dynamo" in name and isinstance(marks, set | frozenset | dict)
        else name
        for name, marks in sorted(held.items())
    ]


def _module(module: torch.nn.Module, contents: Contents) -> Iterator[str]:
    classes: dict[type, str] = {}
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        name, at = waiting.pop()
        cls = type(at)
        if cls not in classes:
            classes[cls] = contents.of(cls)
        yield f"{name} {classes[cls]}"
        if id(at) in seen:
            continue
        seen.add(id(at))
        for attribute, held in vars(at).items():
            if type(held) in _PLAIN:
                yield f"{attribute}={held!r}"
            elif attribute not in _OF_MODULES:
                size = len(held) if isinstance(held, dict) else ""
                yield f"{attribute} {type(held).__qualname__} {size}"
        for held in (vars(at).get("_parameters"), vars(at).get("_buffers")):
            if isinstance(held, dict):
                for key, tensor in held.items():
                    shown = _tensor(tensor) if isinstance(tensor, torch.Tensor) else ""
                    yield f"{key} {shown}"
        children = vars(at).get("_modules")
        if isinstance(children, dict):
            waiting += [
                (f"{name}.{key}", child)
                for key, child in children.items()
                if isinstance(child, torch.nn.Module)
            ]
