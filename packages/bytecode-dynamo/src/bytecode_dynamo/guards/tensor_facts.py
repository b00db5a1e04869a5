"""The metadata of a tensor that guards compare."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The tensor's own dispatch keys as a bit set (conjugation, negation, inference, sparsity,
    wrappers are among them).
    """
    return torch._C._dispatch_keys(tensor).raw_repr()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Metadata of a tensor.

    None in ``sizes`` or ``strides`` means any value (a symbol represents it, or nothing read it).
    ``keys`` are the dispatch keys. ``strides`` is None for a tensor without strides (sparse).
    """

    type: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    keys: int

    @classmethod
    def of(
        cls,
        tensor: torch.Tensor,
        dynamic_sizes: Container[int] = (),
        dynamic_strides: Container[int] = (),
    ) -> TensorFacts:
        """The facts of a real tensor; the dimensions named are left open."""
        with torch._C.DisableTorchFunction():  # the program's modes do not see what guards read
            sizes = tuple(
                None if d in dynamic_sizes else int(n) for d, n in enumerate(tensor.shape)
            )
            strides = None
            if tensor.layout is torch.strided:
                strides = tuple(
                    None if d in dynamic_strides else int(n) for d, n in enumerate(tensor.stride())
                )
            return cls(
                type(tensor),
                tensor.dtype,
                tensor.device,
                tensor.requires_grad,
                sizes,
                strides,
                dispatch_keys(tensor),
            )

    def failure(self, name: str, value: Any) -> str | None:
        """What differs in ``value``, as one line, or None."""
        if type(value) is not self.type:
            return f"type({name}) was {self.type.__name__}, now {type(value).__name__}"
        now = TensorFacts.of(value)
        for attribute in ("dtype", "device", "requires_grad"):
            old, new = getattr(self, attribute), getattr(now, attribute)
            if old != new:
                return f"{name}.{attribute} was {old}, now {new}"
        if len(self.sizes) != len(now.sizes):
            return f"{name}.dim() was {len(self.sizes)}, now {len(now.sizes)}"
        for what, old, new in (
            ("size", self.sizes, now.sizes),
            ("stride", self.strides, now.strides),
        ):
            if old is None or new is None:
                if old is not new:
                    return (
                        f"{name} had {'no ' if old is None else ''}strides, now it has "
                        f"{'no ' if new is None else ''}strides"
                    )
                continue
            for d, (a, b) in enumerate(zip(old, new, strict=True)):
                if a is not None and a != b:
                    return f"{name}.{what}({d}) was {a}, now {b}"
        if self.keys != now.keys:
            return f"dispatch keys of {name} were {key_names(self.keys)}, now {key_names(now.keys)}"
        return None


def key_names(keys: int) -> str:
    """Readable names of a bit set of dispatch keys."""
    if hasattr(torch._C.DispatchKeySet, "from_raw_repr"):
        return str(torch._C.DispatchKeySet.from_raw_repr(keys))
    return hex(keys)
