"""Random operators from counter-based uniform numbers. Other bits than eager draws, the same distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops import prims
from primops.decompositions.creation import Device, Dtype, is_strided, place
from primops.meta import Size
from primops.operand import Tensor, elementwise, full_like, to_dtype, widen
from primops.prim import current_interpreter
from primops.promotion import HALF_DTYPES, is_integral
from primops.registry import DecompositionTable

rules = DecompositionTable()


def uniform(shape: Sequence[Size], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers in [0, 1) of a float dtype."""
    interpreter = current_interpreter()
    if interpreter is not None:
        value = interpreter.uniform(tuple(shape), device)
    else:
        value = prims.uniform(prims.random_seed(device=device), shape=tuple(shape), offset=0)
    if dtype in HALF_DTYPES:
        # Cut to the bits that the dtype has, so that nothing rounds up to 1.
        levels = 2.0 / torch.finfo(dtype).eps
        value = prims.div(prims.floor(prims.mul(value, levels)), levels)
    return to_dtype(value, dtype)


@rules.register("rand")
def rand(
    size: Sequence[Size], *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None
) -> Tensor:
    """Uniform in [0, 1)."""
    return (
        uniform(size, place(device), dtype or torch.get_default_dtype()) if is_strided(layout, pin_memory) else NotImplemented
    )


@rules.register("rand_like")
def rand_like(
    self: Tensor, *, dtype: Dtype = None, layout: Any = None, device: Device = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Uniform in [0, 1)."""
    return rand(self.shape, dtype=dtype or self.dtype, layout=layout, device=device or self.device, pin_memory=pin_memory)


@rules.register("uniform")
def uniform_rule(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None, **named: float) -> Tensor:
    """Uniform in [low, high)."""
    low, high = named.get("from", low), named.get("to", high)
    if generator is not None:
        return NotImplemented
    return elementwise(lambda u: prims.add(prims.mul(u, high - low), low), uniform(self.shape, self.device, self.dtype))


@rules.register("bernoulli.p")
def bernoulli_p(self: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """1 with probability p."""
    if generator is not None:
        return NotImplemented
    return to_dtype(prims.lt(uniform(self.shape, self.device), p), self.dtype)


@rules.register("bernoulli", "bernoulli.Tensor")
def bernoulli(self: Tensor, p: Tensor | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability that each element gives."""
    if generator is not None:
        return NotImplemented
    chance = widen(self if p is None else p)
    drawn = to_dtype(uniform(self.shape, self.device), chance.dtype)
    return to_dtype(prims.lt(drawn, chance), self.dtype)


@rules.register("native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Elements kept with probability ``1 - p`` and scaled by its inverse; also which ones were kept."""
    if train is False or p == 0:
        return input, full_like(input, True, torch.bool)
    if p == 1:
        return full_like(input, 0), full_like(input, False, torch.bool)
    mask = prims.lt(uniform(input.shape, input.device), 1.0 - p)
    return elementwise(lambda a: prims.where(mask, prims.mul(a, 1.0 / (1.0 - p)), 0), input), mask


derivatives = DecompositionTable()


@derivatives.register("native_dropout_backward")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the input was kept, scaled."""
    if is_integral(grad_output.dtype):
        return NotImplemented
    return elementwise(lambda grad: prims.mul(prims.mul(grad, to_dtype(mask, grad.dtype)), scale), grad_output)
