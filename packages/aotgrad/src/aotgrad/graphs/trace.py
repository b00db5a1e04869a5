"""Functional graphs of programs without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from symshapes import FakeTensor, FakeTensorMode, ShapeEnv, is_fake, map_inner, mode_of

from aotgrad.effect_plan import InputSpec
from aotgrad.tracing.joint import Program, trace_values

from .passes import clean


def trace_program(program: Program, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional graph (C2) of a program, cleaned: its flat outputs, then the new values of
    inputs that it writes to.

    ``inputs`` are tensors (real or fake), SymInts or numbers.
    """
    fake_mode = mode_for(inputs)
    specs = [
        InputSpec(f"x{i}", fresh_fake(x, False, fake_mode) if isinstance(x, torch.Tensor) else x)
        for i, x in enumerate(inputs)
    ]
    gm = trace_values(program, specs, fake_mode)
    clean(gm)
    gm.recompile()
    return gm


def mode_for(values: Sequence[Any]) -> FakeTensorMode:
    """The mode of the first fake among ``values``; without one, a new mode over the environment of
    their sizes.
    """
    fake = next(filter(is_fake, values), None)
    if fake is not None:
        return mode_of(fake)
    size = next(
        (v for v in values if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool))), None
    )
    return FakeTensorMode(ShapeEnv(allow_unbacked=True) if size is None else size.node.shape_env)


def fresh_fake(value: torch.Tensor, requires_grad: bool, fake_mode: FakeTensorMode) -> torch.Tensor:
    """A new leaf fake like a real or fake tensor: traces must not see what other traces did to
    it.
    """

    def fresh(inner: torch.Tensor) -> torch.Tensor:
        if not isinstance(inner, FakeTensor):
            inner = fake_mode.from_real(inner.detach())
        return fake_mode.empty(
            inner.shape, inner.stride(), dtype=inner.dtype, device=inner.fake_device
        )

    return map_inner(fresh, value).requires_grad_(requires_grad)
