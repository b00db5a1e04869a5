"""Real tensor to fake tensor, with symbols for its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from symshapes.errors import FakeTensorError

from .tensor import FakeTensor, Mode
from .wrapper import map_inner


def fake_from_real(
    mode: Mode,
    t: torch.Tensor,
    *,
    source: str = "",
    dynamic_dims: Iterable[int] | str = (),
    symbols: dict[int, torch.SymInt] | None = None,
    strides: Sequence[Any] | None = None,
) -> FakeTensor:
    """A fake with the sizes, strides, dtype, device, requires_grad and leaf-ness of ``t``.

    Args:
        mode: the mode that will run its ops.
        t: a strided tensor.
        source: the source of ``t``; its symbols get ``<source>.size(d)``.
        dynamic_dims: dimensions (negative allowed) that get a fresh symbol; ``"auto"`` means all.
            Sizes 0 and 1 stay constant because programs treat them specially.
        symbols: symbols by dimension; these win over ``dynamic_dims``.
        strides: the fake's strides, ints or symbols; by default ``symbolic_strides``.

    Raises FakeTensorError for sparse, quantized, nested and other layouts, IndexError for a
    dimension out of range.
    """
    if t.layout is not torch.strided or t.is_quantized or t.is_nested:
        raise FakeTensorError(
            f"{source or 'a tensor'} has layout {t.layout}: only dense strided tensors can be fake"
        )
    sizes: list[Any] = list(t.shape)
    for d, symbol in _symbols(mode, t, source, dynamic_dims, symbols).items():
        sizes[d] = symbol
    if strides is None:
        strides = symbolic_strides(t.shape, t.stride(), sizes)
    is_result = t.requires_grad and not is_leaf(t)
    with torch.inference_mode(t.is_inference()):
        with torch._C._DisableTorchDispatch():
            meta = torch.empty_strided(tuple(sizes), tuple(strides), dtype=t.dtype, device="meta")
        fake: Any = FakeTensor(meta, t.device, mode, t.requires_grad and not is_result)
    if is_result:
        with torch.enable_grad():
            if t._is_view() and t._base is not None and t._base.is_leaf and t._base.requires_grad:
                # like a view of a leaf: eager refuses in-place writes, and strides stay
                fake = torch.ops.aten.alias(fake.requires_grad_())
            else:
                fake = _Result.apply(mode.empty(()).requires_grad_(), fake)
    fake.source = source
    return fake


def fake_wrapper(mode: Mode, t: torch.Tensor, source: str = "") -> torch.Tensor:
    """The fake of a wrapper subclass, with requires_grad and leafness of ``t``.

    ``source`` names ``t`` in guards, as in ``FakeTensorMode.from_real``.
    """
    return with_history(
        mode, map_inner(lambda inner: fake_from_real(mode, inner, source=source), t), t
    )


def with_history(mode: Mode, fake: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """``fake`` with requires_grad and leaf-ness of ``t``."""
    if not t.requires_grad or is_leaf(t):
        return fake.requires_grad_(t.requires_grad)
    with torch.enable_grad():
        return _Result.apply(mode.empty(()).requires_grad_(), fake)  # type: ignore[return-value]


def is_leaf(t: torch.Tensor) -> bool:
    """``t.is_leaf`` for a tensor that requires gradients, without its effects on views.

    Reading ``is_leaf`` makes a view's history again from its base's. Eager's checks depend on that
    history, and for one of several views the read raises.
    """
    base = t._base if t._is_view() else None
    return t.is_leaf if base is None or not base.requires_grad else False


class _Result(torch.autograd.Function):
    """Gives a fake a history: the result is neither leaf nor view, so it may be written to."""

    @staticmethod
    def forward(ctx: Any, origin: torch.Tensor, fake: FakeTensor) -> torch.Tensor:
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


def _symbols(
    mode: Mode,
    t: torch.Tensor,
    source: str,
    dynamic_dims: Iterable[int] | str,
    given: dict[int, torch.SymInt] | None,
) -> dict[int, torch.SymInt]:
    rank = t.dim()
    wanted = (
        range(rank) if dynamic_dims == "auto" else [_normal(int(d), rank) for d in dynamic_dims]
    )
    found = {_normal(d, rank): s for d, s in (given or {}).items()}
    for d in wanted:
        if d not in found and t.shape[d] >= 2:
            found[d] = mode.shape_env.create_symbol(int(t.shape[d]), f"{source}.size({d})")
    return found


def _normal(d: int, rank: int) -> int:
    if not -rank <= d < rank:
        raise IndexError(f"dimension {d} of a tensor with {rank} dimensions")
    return d % rank


def stride_relations(shape: Sequence[int], strides: Sequence[int]) -> list[frozenset[int]]:
    """By dimension, the dimensions whose stride times size equals its stride.

    The stride of a dimension with at most one element can be any number, so it contradicts no
    relation.
    """
    ends = [stride * max(size, 1) for size, stride in zip(shape, strides)]
    everything = frozenset(range(len(shape)))
    return [
        everything if size < 2 else frozenset(d for d, end in enumerate(ends) if end == stride)
        for size, stride in zip(shape, strides)
    ]


def symbolic_strides(
    shape: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[Any],
    relations: Sequence[Collection[int]] | None = None,
    independent: Callable[[int], Any] | None = None,
) -> list[Any]:
    """Strides over symbolic ``sizes`` that keep the relations of the real ones.

    From the innermost dimension outwards, a stride that equals an earlier dimension's stride times
    its size is that product in symbols. ``relations`` narrows the choice of earlier dimensions, by
    dimension. Any other stride is what ``independent`` gives for its dimension, by default its
    number; 0 and 1 are always numbers.
    """
    out: list[Any] = list(strides)
    inner: list[int] = []
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], shape[d] != 1, -d)):
        if strides[d] > 1:
            known = next(
                (
                    e
                    for e in inner
                    if strides[e] * max(shape[e], 1) == strides[d]
                    and (relations is None or e in relations[d])
                ),
                None,
            )
            if known is not None:
                out[d] = out[known] * (sizes[known] if shape[known] else 1)
            elif independent is not None:
                out[d] = independent(d)
        inner.append(d)
    return out
