"""Handles inputs that are views of other inputs: they share a storage, or are lazy conjugates or
negatives.

If written inputs share elements, one graph is compiled for each memory layout of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from symshapes import is_wrapper

from aotgrad.effect_plan import ConjugateView, InputSpec, StridedView
from aotgrad.errors import Unsupported

from .functional import extent
from .memory_overlap import share_foreign_memory

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]


def with_input_views(values: Sequence[Any], specs: Sequence[InputSpec]) -> list[Any]:
    """The ``values`` of the inputs, with views of other inputs recreated from their bases."""
    return [
        v if s.view_of is None else _view(values[s.view_of.base], s.view_of)
        for v, s in zip(values, specs, strict=True)
    ]


def lazy_view_base(t: torch.Tensor) -> torch.Tensor:
    """The tensor of which ``t`` is the lazy conjugate or negative."""
    with torch.enable_grad():
        t = torch._conj(t) if t.is_conj() else t
        return torch._neg_view(t) if t.is_neg() else t


def _view(base: torch.Tensor, spec: StridedView | ConjugateView) -> torch.Tensor:
    if isinstance(spec, ConjugateView):
        base = torch._conj(base) if spec.conj else base
        return torch._neg_view(base) if spec.neg else base
    base = base.detach() if spec.detached and base.requires_grad else base
    flat = base.permute(_nesting(base.shape, base.stride())).view(-1)
    sizes, strides = spec.sizes, spec.strides
    order = [d for d in _nesting(sizes, strides) if sizes[d] != 1]
    view = _take(flat, [sizes[d] for d in order], [strides[d] for d in order], spec.offset)
    view = view.permute(sorted(range(len(order)), key=order.__getitem__))
    for d in (d for d, size in enumerate(sizes) if size == 1):
        view = view.unsqueeze(d)
    return view


def _take(
    flat: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    """A view of elements of the last dimension with these sizes and strides, outermost first.
    Unlike the result of ``as_strided``, it can be written to.
    """
    if _is_dense(sizes, strides):
        if sizes:
            return flat.narrow(-1, offset, prod(sizes)).unflatten(-1, sizes)
        return flat.select(-1, offset)
    count, stride = sizes[0], strides[0]
    within = max(0, offset + count * stride - flat.shape[-1])
    if within > min(offset, stride - extent(sizes[1:], strides[1:])):
        raise Unsupported(
            "AG029",
            "an input whose elements share memory, or cross the rows of the memory that it lies in",
        )
    rows = flat.narrow(-1, offset - within, count * stride).unflatten(-1, (count, stride))
    return _take(rows, sizes[1:], strides[1:], within)


def _nesting(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions in the order of their strides, outermost first."""
    return sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1, d))


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for d in reversed(_nesting(sizes, strides)):
        if sizes[d] != 1 and strides[d] != expected:
            return False
        expected *= sizes[d]
    return True


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory layout of the inputs of one call.

    Attributes:
        bases: additional inputs, appended to the others.
        views: by index, the inputs that are views of others or of ``bases``.
    """

    bases: tuple[torch.Tensor, ...]
    views: dict[int, StridedView]

    def key(self) -> Hashable:
        """A key that is equal for calls that can share a graph, given that each input is of the
        same kind, too.
        """
        return tuple(_kind(base) for base in self.bases), tuple(self.views.items())


def _kind(t: torch.Tensor) -> Hashable:
    return tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad, t.is_leaf


def find_layout(inputs: Sequence[Any], written: Sequence[int]) -> Layout | None:
    """The memory layout of inputs, some of which are written; None if they can't be replaced by
    views of a base.
    """
    groups: dict[int, list[int]] = {}
    for i, t in enumerate(inputs):
        if isinstance(t, torch.Tensor):
            if is_wrapper(t):
                return None
            if t.numel():
                groups.setdefault(t.untyped_storage()._cdata, []).append(i)
    bases: list[torch.Tensor] = []
    views: dict[int, StridedView] = {}
    for group in groups.values():
        if len(group) < 2 or not any(i in written for i in group):
            continue
        members = [inputs[i] for i in group]
        base = _base_of(members)
        if base is None or not _count_versions_together([base, *members]):
            return None
        at = next((i for i, t in zip(group, members) if t is base), len(inputs) + len(bases))
        if at >= len(inputs):
            bases.append(base)
        for i, t in zip(group, members):
            if t is not base:
                offset = t.storage_offset() - base.storage_offset()
                if not 0 <= offset <= base.numel() - extent(t.shape, t.stride()):
                    return None
                detached = base.requires_grad and not t.requires_grad
                views[i] = StridedView(at, tuple(t.shape), t.stride(), offset, detached)
    return Layout(tuple(bases), views)


def _base_of(members: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The common base of tensors of one storage; None if there is none.

    It is autograd's base, or, if the tensors have no history, a tensor over all their memory.
    """
    first = members[0]
    if any(t.dtype is not first.dtype or t.is_neg() or t.is_conj() for t in members):
        return None
    recorded = [t for t in members if t.requires_grad]
    if not recorded:
        if any(_has_history(t) for t in members):
            return None
        low, high = 0, first.untyped_storage().nbytes() // first.element_size()
        if all(_is_dense(t.shape, t.stride()) for t in members):
            low = min(t.storage_offset() for t in members)
            high = max(t.storage_offset() + t.numel() for t in members)
        return first.as_strided((high - low,), (1,), low)
    base = recorded[0]._base if recorded[0]._is_view() else recorded[0]
    if (
        base is None
        or not _is_dense(base.shape, base.stride())
        or not all(_is_default_view(t, base) for t in recorded)
    ):
        return None
    return None if any(_has_history(t) for t in members if not t.requires_grad) else base


def _has_history(t: torch.Tensor) -> bool:
    """Whether a tensor that requires no grad is a view of one that does: eager may refuse to write
    to it.
    """
    return t._is_view() and t._base is not None and t._base.requires_grad


def _is_default_view(t: torch.Tensor, base: torch.Tensor) -> bool:
    if t is base:
        return True
    is_plain = t._base is base and _autograd._get_creation_meta(t) == _autograd.CreationMeta.DEFAULT
    return is_plain and not t.retains_grad and not t._backward_hooks


def _count_versions_together(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a write to one tensor bumps the versions of all; it does not after ``.data``."""
    if any(t.is_inference() for t in tensors):
        return all(t.is_inference() for t in tensors)
    before = [t._version for t in tensors]
    torch._C._increment_version(tensors[:1])  # type: ignore[attr-defined]
    counted = [t._version - version for t, version in zip(tensors, before)]
    _autograd._unsafe_set_version_counter(tuple(tensors[:1]), tuple(before[:1]))
    return all(n == 1 for n in counted)


@dataclass(slots=True, eq=False)
class OverlapDispatcher:
    """A compiled program for calls whose written inputs share memory.

    Attributes:
        written: the inputs that the program writes to.
        lifted: the leading inputs, which callers do not pass.
        compile: compiles the program for inputs in a layout; None if it can't.
        otherwise: runs calls that can't be compiled.
    """

    written: Sequence[int]
    lifted: tuple[torch.Tensor, ...]
    compile: Callable[[Sequence[Any], Layout], Callable[..., Any] | None]
    otherwise: Callable[..., Any]
    _calls: dict[Hashable, Callable[..., Any] | None] = field(default_factory=dict)

    def __call__(self, *inputs: Any) -> Any:
        given = (*self.lifted, *inputs)
        layout = find_layout(given, self.written)
        if layout is None or self._write_to_foreign_memory(given):
            return self.otherwise(*inputs)
        key = tuple(_kind(x) if isinstance(x, torch.Tensor) else x for x in given), layout.key()
        if key not in self._calls:
            is_full = len(self._calls) >= _MAX_LAYOUTS
            self._calls[key] = None if is_full else self.compile(given, layout)
        call = self._calls[key]
        return self.otherwise(*inputs) if call is None else call(*inputs, *layout.bases)

    def _write_to_foreign_memory(self, given: Sequence[Any]) -> bool:
        tensors = {i: x for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
        written = [tensors.pop(i) for i in self.written]
        return share_foreign_memory(written, list(tensors.values()))


_MAX_LAYOUTS = 16  # number of layouts per program; further ones run eagerly
