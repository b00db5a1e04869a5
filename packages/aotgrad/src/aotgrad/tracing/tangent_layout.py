"""Converts incoming gradients to the layout that the backward graph was compiled for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from symshapes import as_jagged, inner_tensors, is_jagged, is_wrapper, map_inner, rebuild, same_kind
from torch.utils._python_dispatch import _disable_current_modes

from .functional import size_hint

if TYPE_CHECKING:
    from symshapes import FakeTensorMode


def tangent_like(value: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    """A fake with the layout in which the backward graph gets a gradient of ``value``: dense, with
    dimensions nested as in ``value``.
    """
    if is_wrapper(value) and hasattr(value, "__coerce_tangent_metadata__"):
        with _disable_current_modes(), fake_mode:  # only the result's layout matters
            value = value.__coerce_tangent_metadata__()  # type: ignore[attr-defined]
    return map_inner(
        lambda t: fake_mode.empty(t.shape, dense_strides(t), dtype=t.dtype, device=t.device), value
    )


def dense_strides(value: torch.Tensor) -> list[Any]:
    """Strides of a dense tensor whose dimensions are nested in the order of ``value``'s strides."""
    strides: list[Any] = [1] * value.dim()
    product: Any = 1
    for d in sorted(range(value.dim()), key=lambda d: (size_hint(value.stride(d)), -d)):
        strides[d] = product
        product = product * value.shape[d] if size_hint(value.shape[d]) != 0 else product
    return strides


def restride(tangent: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``tangent`` with the given dense strides: itself if only dimensions of size 1 differ, else a
    copy.

    Sparse gradients become dense, and lazy negation or conjugation is resolved.
    """
    tangent = as_plain(tangent).resolve_neg().resolve_conj()
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    shape = tangent.shape
    if all(size == 1 or a == b for size, a, b in zip(shape, tangent.stride(), strides)):
        return tangent.as_strided(shape, strides)
    return tangent.new_empty_strided(shape, strides).copy_(tangent)


def restride_saved(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """A saved tensor whose ``data`` was replaced, in the layout in which it was saved."""
    if tensor.shape != sizes:
        raise RuntimeError(
            f"a tensor saved for backward had the sizes {sizes}; its data now has "
            f"{tuple(tensor.shape)}"
        )
    return restride(tensor, strides)


def restride_like(tangent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tangent`` as a dense tensor whose dimensions are nested in memory as those of ``like``, a
    fake; differentiable.
    """
    strides, stride = [0] * tangent.dim(), 1
    for d in sorted(reversed(range(tangent.dim())), key=lambda d: size_hint(like.stride(d))):
        strides[d], stride = stride, stride * max(tangent.shape[d], 1)
    return tangent if tangent.stride() == tuple(strides) else restride(tangent, tuple(strides))


def as_plain(tangent: torch.Tensor) -> torch.Tensor:
    """``tangent`` converted to a plain tensor."""
    return _coerced(tangent, None, torch.Tensor) if is_wrapper(tangent) else tangent


def like_wrapper(tangent: torch.Tensor, like: Any) -> torch.Tensor:
    """``tangent`` converted to the class and context of ``like``, with the layouts of its inner
    tensors.
    """
    like = as_jagged(like)
    if is_jagged(tangent) and is_jagged(like):
        tangent = _jagged_like(tangent, like)
    elif not same_kind(tangent, like):
        tangent = _coerced(tangent, like.__tensor_flatten__()[1], type(like))
        if not same_kind(tangent, like):
            raise RuntimeError(
                f"{_mismatch(tangent, type(like))} after __coerce_same_metadata_as_tangent__"
            )
    layouts = inner_tensors(like)
    return map_inner(lambda inner: restride_like(inner, next(layouts)), tangent)


def _jagged_like(tangent: Any, like: Any) -> Any:
    """A jagged tangent that holds what ``like`` does; operators may have added lengths to it."""
    names, context = like.__tensor_flatten__()
    inner = {name: getattr(tangent, name) for name in names}
    found = tangent.__tensor_flatten__()[1]["ragged_idx"]
    if found != context["ragged_idx"] or None in inner.values():
        raise RuntimeError(_mismatch(tangent, type(like)))
    return rebuild(type(like), inner, context, (), ())


def _coerced(tangent: Any, context: Any, cls: type) -> torch.Tensor:
    coerce = getattr(tangent, "__coerce_same_metadata_as_tangent__", None)
    # classes whose gradients never change class may have no parameter for it
    wanted = (context,) if type(tangent) is cls else (context, cls)
    if coerce is None or type(result := coerce(*wanted)) is not cls:
        raise RuntimeError(
            f"{_mismatch(tangent, cls)}; __coerce_same_metadata_as_tangent__ of its class may "
            f"convert it"
        )
    return result


def _mismatch(tangent: torch.Tensor, cls: type) -> str:
    found = (
        f"{type(tangent).__qualname__}{tangent.__tensor_flatten__() if is_wrapper(tangent) else ''}"  # type: ignore[attr-defined]
    )
    return (
        f"backward got a gradient of class {found} for a result whose gradient was compiled as "
        f"{cls.__qualname__}"
    )


@dataclass(slots=True, eq=False)
class ZerosCache:
    """Zeros that replace absent gradients.

    They are never written to, and values that depend on them alone are not returned, so there is
    one tensor per shape; only the most recently used ones are cached.
    """

    KEPT: ClassVar[int] = 4
    _made: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict, init=False)

    def __call__(
        self, sizes: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor of zeros that must not be written to."""
        key = (sizes, dtype, device)
        made = self._made.pop(key, None)
        if made is None:
            made = torch.zeros(sizes, dtype=dtype, device=device)
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return made  # contains zeros only after the captured graph has run
        self._made[key] = made
        if len(self._made) > self.KEPT:
            del self._made[next(iter(self._made))]
        return made
