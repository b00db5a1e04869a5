"""Python values as source text, and back: numbers, dtypes, devices, nested containers.

A name stands for what the reader of the text says, a dotted name for an attribute of torch or math,
and a call is one of a few constructors. Nothing else is looked up or called.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from symshapes.errors import ParseError

from .form import reading

Leaf: TypeAlias = Callable[[Any], str | None]
NodeReader: TypeAlias = Callable[[ast.expr], Any]
MISSING = object()
"""What a node reader returns for a node that it leaves to ``parse_value``."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class Unwritable(TypeError):
    """A value or function has no text.

    Attributes:
        what: the value.
        node: the node of the graph that has it, or None.
    """

    def __init__(self, what: str, node: object = None, line: str = "") -> None:
        where = "" if node is None else f", at the node {node}"
        super().__init__(f"{what} has no text form{where}" + (f"\n  {line}" if line else ""))
        self.what = what
        self.node = node


def format_value(value: Any, leaf: Leaf = lambda value: None) -> str:
    """``value`` as Python source. ``leaf`` is asked first, for values that only the caller knows.

    Raises Unwritable.
    """
    known = leaf(value)
    if known is not None:
        return known
    if isinstance(value, tuple | list):
        return _sequence(value, leaf)
    if isinstance(value, dict):
        items = (f"{format_value(k, leaf)}: {format_value(v, leaf)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, set | frozenset):
        inner = ", ".join(sorted(format_value(item, leaf) for item in value))
        return f"{type(value).__name__}([{inner}])"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return f"slice({', '.join(format_value(part, leaf) for part in parts)})"
    if isinstance(value, _NAMED):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if type(value) is float:
        return format_float(value)
    if type(value) is complex:
        return f"complex({format_float(value.real)}, {format_float(value.imag)})"
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if value is ...:
        return "..."
    raise Unwritable(f"a value of {type(value).__module__}.{type(value).__qualname__}")


def _sequence(value: tuple | list, leaf: Leaf) -> str:
    inner = ", ".join(format_value(item, leaf) for item in value)
    if isinstance(value, list):
        return f"[{inner}]"
    text = f"({inner}{',' if len(value) == 1 else ''})"
    return f"torch.Size({text})" if isinstance(value, torch.Size) else text


def format_float(value: float) -> str:
    """A literal that gives the same bits, except those of NaNs."""
    if math.isfinite(value):
        return repr(value)
    return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "-math.inf")


def parse_value(node: ast.expr, leaf: NodeReader = lambda node: MISSING) -> Any:
    """The value of a syntax tree; ``leaf`` is asked first. Raises ParseError."""
    with reading():
        return _read(node, leaf)


def _read(node: ast.expr, leaf: NodeReader) -> Any:
    found = leaf(node)
    if found is not MISSING:
        return found

    def read(part: ast.expr) -> Any:
        return _read(part, leaf)

    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub()) if type(number := read(node.operand)) in (int, float):
            return -number
        case ast.Tuple():
            return tuple(map(read, node.elts))
        case ast.List():
            return list(map(read, node.elts))
        case ast.Dict(keys=keys) if None not in keys:
            pairs = [(read(key), read(item)) for key, item in zip(keys, node.values) if key]
            return _constructed(node, dict, [pairs])
        case ast.Attribute(value=ast.Name(id="torch")):
            named = getattr(torch, node.attr, None)
            if isinstance(named, _NAMED):
                return named
        case ast.Attribute(value=ast.Name(id="math"), attr="inf" | "nan"):
            return getattr(math, node.attr)
        case ast.Call(keywords=[]) if (name := ast.unparse(node.func)) in _CONSTRUCTORS:
            return _constructed(node, _CONSTRUCTORS[name], [read(part) for part in node.args])
    raise ParseError.at(node, "not a value")


_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "set": set, "frozenset": frozenset, "slice": slice, "complex": complex,
    "torch.device": torch.device, "torch.Size": torch.Size,
}  # fmt: skip


def _constructed(node: ast.expr, make: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return make(*arguments)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ParseError.at(node, f"not a value ({error})") from error
