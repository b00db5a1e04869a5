"""What a saved program requires of values: facts of tensors, constants, and the thread's state."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import torch
from symshapes.text.values import format_value, parse_value

Json: TypeAlias = Any


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class TensorNeed:
    """What a tensor must be. None in ``sizes`` or ``strides`` is any number."""

    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    inference: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorNeed:
        """Exactly what a tensor is."""
        return TensorNeed(
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.is_inference(),
        )

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is exactly this, for facts that leave nothing open."""
        return (
            tensor.shape == self.sizes
            and tensor.dtype is self.dtype
            and tensor.stride() == self.strides
            and tensor.device == self.device
            and tensor.requires_grad == self.requires_grad
            and tensor.is_inference() == self.inference
            and type(tensor) in _PLAIN
        )

    def problem(self, name: str, value: Any) -> str | None:
        """What differs in a value, as one line, or None."""
        if type(value) not in _PLAIN:
            return f"{name} must be a tensor, not a {type(value).__name__}"
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return f"{name} must be a strided tensor, neither conjugated nor negated lazily"
        now = TensorNeed.of(value)
        if len(now.sizes) != len(self.sizes):
            return f"{name}.dim() was {len(self.sizes)}, now {len(now.sizes)}"
        for what, old, new in (
            ("size", self.sizes, now.sizes),
            ("stride", self.strides, now.strides),
        ):
            for dim, (a, b) in enumerate(zip(old, new)):
                if a is not None and a != b:
                    return f"{name}.{what}({dim}) was {a}, now {b}"
        for what in ("dtype", "device", "requires_grad", "inference"):
            if getattr(self, what) != getattr(now, what):
                return f"{name}: {what} was {getattr(self, what)}, now {getattr(now, what)}"
        return None


@dataclass(frozen=True, slots=True)
class ValueNeed:
    """A constant that an argument must be equal to, type and all."""

    value: Any

    def problem(self, name: str, value: Any) -> str | None:
        """What differs in a value, as one line, or None."""
        old = self.value
        same = old is value or (type(old) is type(value) and repr(old) == repr(value))
        return None if same else f"{name} was {old!r}, now {value!r}"


@dataclass(frozen=True, slots=True)
class NumberNeed:
    """A number of any value: its symbol has conditions. ``kind`` is ``int`` or ``float``."""

    kind: str

    def problem(self, name: str, value: Any) -> str | None:
        """What differs in a value, as one line, or None."""
        now = type(value).__name__
        return None if now == self.kind else f"type({name}) was {self.kind}, now {now}"


Need: TypeAlias = TensorNeed | ValueNeed | NumberNeed
_KINDS = {kind.__name__: kind for kind in (TensorNeed, ValueNeed, NumberNeed)}


def need_text(need: Need | None) -> str:
    """A need as text. Raises Unwritable for a constant without a text."""
    if need is None:
        return "None"
    values = ", ".join(format_value(getattr(need, field.name)) for field in fields(need))
    return f"{type(need).__name__}({values})"


def read_need(text: str) -> Need | None:
    """The need of a text. Raises ParseError."""
    node = ast.parse(text, mode="eval").body
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Call(func=ast.Name(id=kind), args=values, keywords=[]) if kind in _KINDS:
            return _KINDS[kind](*map(parse_value, values))
    raise ValueError(f"not a need: {text}")


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The state of torch that a program was compiled under."""

    grad_mode: bool
    inference_mode: bool
    default_dtype: torch.dtype
    deterministic: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    tf32: bool

    @staticmethod
    def now() -> ThreadState:
        """That of this thread."""
        on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
        return ThreadState(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            tuple((device, torch.get_autocast_dtype(device)) for device in on),
            torch.backends.cuda.matmul.fp32_precision == "tf32",
        )

    def problem(self, now: ThreadState) -> str | None:
        """What differs, as one line, or None."""
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(now, field.name)
            if old != new:
                return f"{_SHOWN.get(field.name, field.name)} was {old}, now {new}"
        return None

    def to_json(self) -> Json:
        """A JSON value."""
        return {name: format_value(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_json(stored: Mapping[str, str]) -> ThreadState:
        """The state of a JSON value."""
        return ThreadState(**{name: read_value(text) for name, text in stored.items()})


_SHOWN = {
    "grad_mode": "torch.is_grad_enabled()",
    "inference_mode": "torch.is_inference_mode_enabled()",
    "default_dtype": "torch.get_default_dtype()",
    "deterministic": "torch.are_deterministic_algorithms_enabled()",
    "autocast": "torch.autocast",
    "tf32": "TF32 in float32 products",
}


def read_value(text: str) -> Any:
    """The value of a text of ``format_value``. Raises ParseError."""
    return parse_value(ast.parse(text, mode="eval").body)
