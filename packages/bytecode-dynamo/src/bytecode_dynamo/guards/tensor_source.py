"""Where numbers of a tensor come from: its sizes, strides and storage offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .source import AppliedSource, ChainedSource, SourceEmitter, hashed_once


class NumberSource(ChainedSource):
    """What a method of a tensor gives."""

    method: ClassVar[str]

    @property
    def arguments(self) -> tuple[int, ...]:
        """Of the call."""
        return ()

    @property
    def name(self) -> str:
        return f"{self.base.name}.{self.method}({', '.join(map(str, self.arguments))})"

    def step(self, value: Any) -> int:
        return getattr(value, self.method)(*self.arguments)

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_method(self.method)
        for argument in self.arguments:
            emitter.load_const(argument)
        emitter.call(len(self.arguments))


@hashed_once
@dataclass(frozen=True)
class _DimSource(NumberSource):
    dim: int

    @property
    def arguments(self) -> tuple[int, ...]:
        return (self.dim,)


class SizeSource(_DimSource):
    """``base.size(dim)`` of a tensor."""

    method = "size"


class StrideSource(_DimSource):
    """``base.stride(dim)`` of a tensor."""

    method = "stride"


class StorageOffsetSource(NumberSource):
    """``base.storage_offset()`` of a tensor."""

    method = "storage_offset"


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its class."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


class PlainTensorSource(AppliedSource):
    """A tensor of a subclass as one of torch.Tensor."""

    function = as_plain
    text = "{}.as_subclass(Tensor)"


class ArraySource(AppliedSource):
    """The tensor over an array's memory."""

    function = torch.from_numpy
    text = "torch.from_numpy({})"
