"""Fake tensors of a text form."""

from __future__ import annotations

from typing import Any

import torch

from symshapes.env import ShapeEnv
from symshapes.fake.mode import FakeTensorMode
from symshapes.fake.tensor import FakeTensor

from .tensors import TensorType
from .values import Unwritable


class FakeTensors:
    """The fakes of one mode over an environment."""

    def __init__(self, env: ShapeEnv) -> None:
        self.mode = FakeTensorMode(env)

    @staticmethod
    def describe(value: Any) -> TensorType | None:
        """The type of a fake; None for what is no tensor. Raises Unwritable for other tensors."""
        if not isinstance(value, torch.Tensor):
            return None
        if type(value) is not FakeTensor or value.layout is not torch.strided:
            kind, sizes = type(value).__qualname__, tuple(value.shape)
            raise Unwritable(f"a {kind} of {value.dtype} {sizes}, {value.layout}")
        return TensorType(
            value.dtype, tuple(value.shape), value.stride(), value.device,
            value.storage_offset(), value.requires_grad, value.is_conj(), value.is_neg(),
        )  # fmt: skip

    def make(self, given: TensorType) -> FakeTensor:
        """A fake in memory of its own."""
        known = {"dtype": given.dtype, "device": given.device}
        if isinstance(given.offset, int) and given.offset == 0:
            made: Any = self.mode.empty(given.shape, given.strides, **known)
        else:
            reach = sum((size - 1) * step for size, step in zip(given.shape, given.strides))
            whole = self.mode.empty((given.offset + reach + 1,), **known)
            with self.mode:
                made = whole.as_strided(given.shape, given.strides, given.offset)
        for flag, view in ((given.conj, torch._conj), (given.neg, torch._neg_view)):
            made = view(made) if flag else made
        return made.requires_grad_() if given.requires_grad else made
