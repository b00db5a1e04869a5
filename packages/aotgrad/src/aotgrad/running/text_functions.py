"""Functions that the generated text of calls names. A cached text imports them when it is loaded,
so they need neither expressions nor graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from symshapes import flatten, inner_tensors, map_inner, rebuild

from aotgrad.effect_plan import GUARD_FAILED
from aotgrad.errors import ContractError

if TYPE_CHECKING:
    from aotgrad.graphs.partial_backward import UnsafeMasks

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]


def as_inference(value: torch.Tensor) -> torch.Tensor:
    """An inference tensor in the memory of ``value``."""
    if value.is_inference():
        return value
    with torch.inference_mode():
        return map_inner(_alias, value)


def _alias(inner: Any) -> torch.Tensor:
    """A tensor over the memory of another; ``set_`` forgets that it is lazily conjugated."""
    alias = torch.empty(0, dtype=inner.dtype, device=inner.device).set_(inner)
    alias = alias.conj() if inner.is_conj() else alias
    return torch._neg_view(alias) if inner.is_neg() else alias


def as_multi_output_view(value: torch.Tensor) -> torch.Tensor:
    """A view that autograd refuses to write to, like a result of ``split``."""
    view = value[...]  # view_as changes the strides of dimensions of one element
    _autograd._set_creation_meta(view, _autograd.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def write_back(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copies ``value`` into an input. An inference tensor takes writes in inference mode only, and
    the program wrote to it there.
    """
    if target.is_inference():
        with torch.inference_mode():
            target.copy_(value)
    else:
        target.copy_(value)


def write_back_all(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copies each value into its input, like ``write_back``."""
    if any(target.is_inference() for target in targets):
        for target, value in zip(targets, values):
            write_back(target, value)
    else:
        torch._foreach_copy_(targets, values)


def write_inner(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copies the inner tensors of one wrapper into those of another."""
    for inner, new in zip(inner_tensors(target), inner_tensors(value)):
        if inner is not new:
            inner.copy_(new)
    torch._C._increment_version((target,))  # type: ignore[attr-defined]


def wrong_arity(what: str, expected: int, got: Any) -> ContractError:
    """The error for a compiled graph that returns the wrong number of values."""
    count = len(got) if isinstance(got, (tuple, list)) else f"a {type(got).__name__}"
    return ContractError(
        "B1", f"the compiled {what} graph returned {count} values instead of {expected}"
    )


def wrapped_zeros(like: Any, sizes: Sequence[int]) -> torch.Tensor:
    """Zeros in a wrapper subclass; ``sizes`` are those of all inner tensors, concatenated."""
    remaining = iter(sizes)

    def zeros(inner: Any) -> torch.Tensor:
        shape = [next(remaining) for _ in inner.shape]
        return torch.zeros(shape, dtype=inner.dtype, device=inner.fake_device)

    return map_inner(zeros, like)


def beside_values(value: Any) -> dict[str, torch.Tensor]:
    """What a nested tensor holds, except for its values."""
    return {name: getattr(value, name) for name in flatten(value)[0] if name != "_values"}


def nested_zeros(like: Any, sizes: Sequence[int], beside: dict[str, torch.Tensor]) -> torch.Tensor:
    """Zeros in a nested tensor; ``sizes`` are those of the values."""
    values = torch.zeros(sizes, dtype=like.dtype, device=like._values.fake_device)
    return rebuild(type(like), {"_values": values, **beside}, flatten(like)[1], (), ())


def mask_absent(masks: Sequence[int], given: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
    """``gradients``, with None for those that depend on absent tangents only."""
    return tuple(
        None if bits and not bits & given else gradient for bits, gradient in zip(masks, gradients)
    )


def wait_for(value: torch.Tensor, message: str = GUARD_FAILED) -> None:
    """Raises RuntimeError unless the tensor is true."""
    if not value:
        raise RuntimeError(message)


def zeros_are_unsafe(given: int, masks: UnsafeMasks) -> bool:
    """Whether zeros must not replace the tangents that are not ``given``."""
    return any(not given & absent and given & others for absent, others in masks)
