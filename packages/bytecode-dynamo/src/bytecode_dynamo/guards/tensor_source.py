"""Sources of a tensor's sizes, strides and storage offset, and of tensors in another form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .source import AppliedSource, ChainedSource, hashed_once
from .step import Call, Step


@hashed_once
@dataclass(frozen=True)
class _DimSource(ChainedSource):
    dim: int
    method: ClassVar[str]

    @property
    def steps(self) -> tuple[Step, ...]:
        text = f"{{}}.{self.method}({self.dim})"
        return (Call(getattr(torch.Tensor, self.method), text, (self.dim,)),)


class SizeSource(_DimSource):
    """``base.size(dim)`` of a tensor."""

    method = "size"


class StrideSource(_DimSource):
    """``base.stride(dim)`` of a tensor."""

    method = "stride"


class StorageOffsetSource(AppliedSource):
    """``base.storage_offset()`` of a tensor."""

    function, text = torch.Tensor.storage_offset, "{}.storage_offset()"


class ElementSource(AppliedSource):
    """``base.item()`` of a tensor with one element, in the memory of the CPU."""

    function, text = torch.Tensor.item, "{}.item()"


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its subclass."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


class PlainTensorSource(AppliedSource):
    """A tensor of a subclass as a ``torch.Tensor``."""

    function, text = as_plain, "{}.as_subclass(Tensor)"

    @property
    def shown(self) -> str:
        return self.base.shown


class ArraySource(AppliedSource):
    """The tensor that shares an array's memory."""

    function, text = torch.from_numpy, "torch.from_numpy({})"

    @property
    def shown(self) -> str:
        return self.base.shown
