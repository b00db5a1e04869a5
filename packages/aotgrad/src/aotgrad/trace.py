"""Functional graphs of programs without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from symshapes import FakeTensor, FakeTensorMode, ShapeEnv

from .joint import Program, trace_values
from .passes import clean
from .plan import InputSpec


def trace_program(program: Program, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional graph (C2) of a program, cleaned: its flat outputs, then the new values of inputs that it writes to.

    ``inputs`` are tensors (real or fake), SymInts or numbers.
    """
    fakes = [x for x in inputs if isinstance(x, FakeTensor)]
    fake_mode = fakes[0].fake_mode if fakes else FakeTensorMode(ShapeEnv())
    specs = [
        InputSpec(f"x{i}", fresh_fake(x, False, fake_mode) if isinstance(x, torch.Tensor) else x) for i, x in enumerate(inputs)
    ]
    gm = trace_values(program, specs, fake_mode)
    clean(gm)
    gm.recompile()
    return gm


def fresh_fake(value: torch.Tensor, requires_grad: bool, fake_mode: FakeTensorMode) -> torch.Tensor:
    """A new leaf fake like a real or fake tensor: traces must not see what other traces did to it."""
    if not isinstance(value, FakeTensor):
        value = fake_mode.from_real(value.detach())
    like = fake_mode.empty(value.shape, value.stride(), dtype=value.dtype, device=value.fake_device)
    return like.requires_grad_(requires_grad)
