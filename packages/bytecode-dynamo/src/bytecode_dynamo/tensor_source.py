"""Where numbers of a tensor come from: its sizes, strides and storage offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .source import ChainedSource, SourceEmitter, hashed_once


@hashed_once
@dataclass(frozen=True)
class SizeSource(ChainedSource):
    """``base.size(dim)`` of a tensor."""

    dim: int

    @property
    def name(self) -> str:
        return f"{self.base.name}.size({self.dim})"

    def step(self, value: Any) -> int:
        return value.size(self.dim)

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_method("size")
        emitter.load_const(self.dim)
        emitter.call(1)


@hashed_once
@dataclass(frozen=True)
class StrideSource(ChainedSource):
    """``base.stride(dim)`` of a tensor."""

    dim: int

    @property
    def name(self) -> str:
        return f"{self.base.name}.stride({self.dim})"

    def step(self, value: Any) -> int:
        return value.stride(self.dim)

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_method("stride")
        emitter.load_const(self.dim)
        emitter.call(1)


@hashed_once
@dataclass(frozen=True)
class StorageOffsetSource(ChainedSource):
    """``base.storage_offset()`` of a tensor."""

    @property
    def name(self) -> str:
        return f"{self.base.name}.storage_offset()"

    def step(self, value: Any) -> int:
        return value.storage_offset()

    def emit(self, emitter: SourceEmitter) -> None:
        self.base.emit(emitter)
        emitter.load_method("storage_offset")
        emitter.call(0)


@hashed_once
@dataclass(frozen=True)
class PlainTensorSource(ChainedSource):
    """A tensor of a subclass as one of torch.Tensor."""

    @property
    def name(self) -> str:
        return f"{self.base.name}.as_subclass(Tensor)"

    def step(self, value: Any) -> torch.Tensor:
        return as_plain(value)

    def emit(self, emitter: SourceEmitter) -> None:
        emitter.load_callee_const(as_plain)
        self.base.emit(emitter)
        emitter.call(1)


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its class."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)
