"""Types of values as source text: ``f32[s0, 16]``, ``f32[4, 8](1, 4, device="cuda:0")``,
``size(2*s0)``.

Strides are stated where they are not row-major, the device where it is not the CPU.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import sympy
import torch

from symshapes.errors import ParseError

from .values import parse_value

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Size: TypeAlias = Any  # an int, or whatever stands for a symbolic size
FormatSize: TypeAlias = Callable[[Size], str]
ParseSize: TypeAlias = Callable[[ast.expr], Size]


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a text says of a tensor; sizes, strides and offset are ints or symbolic. ``conj`` and
    ``neg`` are torch's bits of lazy views.
    """

    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    device: torch.device
    offset: Size = 0
    requires_grad: bool = False
    conj: bool = False
    neg: bool = False


_FLAGS = ("requires_grad", "conj", "neg")


class TensorKind(Protocol):
    """The class of tensors of a text form."""

    def describe(self, value: Any) -> TensorType | None:
        """The type of a tensor; None for other values. Raises Unwritable."""
        ...

    def make(self, given: TensorType) -> Any:
        """A tensor of the type."""
        ...


def format_tensor_type(given: TensorType, size: FormatSize) -> str:
    """``given`` as text."""
    numbers = (*given.shape, *given.strides, given.offset)
    return _format(given, size) if {*map(type, numbers)} - {int} else _format_static(given)


@lru_cache(maxsize=4096)
def _format_static(given: TensorType) -> str:
    return _format(given, str)


def _format(given: TensorType, size: FormatSize) -> str:
    name = _NAMES.get(given.dtype) or str(given.dtype).removeprefix("torch.")
    sizes = [size(item) for item in given.shape]
    strides = [size(step) for step in given.strides]
    more = [] if strides == _row_major(given.shape, size) else strides
    if given.device != torch.device("cpu"):
        more.append(f"device={str(given.device)!r}")
    if (offset := size(given.offset)) != "0":
        more.append(f"offset={offset}")
    more += [f"{flag}=True" for flag in _FLAGS if getattr(given, flag)]
    text = f"{name}[{', '.join(sizes) or '()'}]"
    return f"{text}({', '.join(more)})" if more else text


def _row_major(shape: Sequence[Size], size: FormatSize) -> list[str]:
    return [size(step) for step in row_major(shape)]


def row_major(shape: Sequence[Size]) -> list[Size]:
    """Strides of a row-major tensor; a size that is symbolic counts as at least 1."""
    strides: list[Size] = []
    step: Size = 1
    for item in reversed(shape):
        strides.append(step)
        step = step * (max(item, 1) if isinstance(item, int | sympy.Integer) else item)
    return strides[::-1]


def parse_tensor_type(node: ast.expr, size: ParseSize) -> TensorType | None:
    """The inverse of ``format_tensor_type``; None for another expression. Raises ParseError."""
    call = node if isinstance(node, ast.Call) else None
    head = call.func if call else node
    if not isinstance(head, ast.Subscript) or not isinstance(head.value, ast.Name):
        return None
    name = head.value.id
    dtype = DTYPES.get(name) or getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ParseError.at(head.value, "not a dtype")
    shape = tuple(map(size, head.slice.elts if isinstance(head.slice, ast.Tuple) else [head.slice]))
    strides = tuple(map(size, call.args)) if call else ()
    if strides and len(strides) != len(shape):
        raise ParseError.at(node, f"{len(strides)} strides of {len(shape)} dims")
    more: dict[str, Any] = {}
    for keyword in call.keywords if call else ():
        if keyword.arg not in ("device", "offset", *_FLAGS):
            raise ParseError.at(node, f"unknown property {keyword.arg}")
        value = (size if keyword.arg == "offset" else parse_value)(keyword.value)
        if keyword.arg in _FLAGS and type(value) is not bool:
            raise ParseError.at(keyword.value, "expected True or False")
        more[keyword.arg] = value
    device = _device(node, more.pop("device", "cpu"))
    return TensorType(dtype, shape, strides or tuple(row_major(shape)), device, **more)


def _device(node: ast.expr, name: Any) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ParseError.at(node, "not a device") from error
