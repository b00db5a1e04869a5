"""Cache of op results by metadata: a hit costs a dict lookup and a meta tensor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from .registered import fake_kernel
from .tensor import FakeTensor, Mode

_LIMIT = 50_000
_is_alias_of = torch._C._is_alias_of  # type: ignore[attr-defined]
_META = torch.device("meta")


class ResultCache:
    """Metadata of results, keyed by op, operand metadata and constants.

    Ops that alias, mutate or depend on data are never cached.
    """

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._entries: dict[Any, Any] = {}
        self.admits = cache(_is_cacheable)  # anew per mode: a fake kernel may be registered later

    def key(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A hashable key, or None when an argument has none."""
        parts: list[Any] = [func, torch.get_default_dtype()]
        try:
            for a in args:
                _append(parts, a)
            for name in kwargs:
                parts.append(name)
                _append(parts, kwargs[name])
            key = tuple(parts)
            hash(key)
        except TypeError:
            return None
        return key

    def lookup(self, mode: Mode, key: Any) -> Any:
        """Fresh fakes for a cached result, or None."""
        entry = self._entries.get(key) if key is not None else None
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        kind, items = entry
        if kind is None:
            return _rebuild(mode, items)
        return kind(None if i is None else _rebuild(mode, i) for i in items)

    def store(self, key: Any, out: Any, args: tuple) -> None:
        """Caches ``out`` if it consists of new fakes only."""
        if len(self._entries) > _LIMIT:
            self._entries.clear()
        if _is_plain(out):
            if not _aliases(out, args):
                self._entries[key] = (None, _describe(out))
        elif type(out) in (tuple, list) and all(
            o is None or (_is_plain(o) and not _aliases(o, args)) for o in out
        ):
            self._entries[key] = (type(out), [None if o is None else _describe(o) for o in out])


def _is_cacheable(func: Any) -> bool:
    """Whether results of ``func`` may be cached."""
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and func not in _NEVER
        and not schema.is_mutable
        and not any(r.alias_info is not None for r in schema.returns)
        and torch.Tag.data_dependent_output not in func.tags
        and torch.Tag.dynamic_output_shape not in func.tags
        and fake_kernel(func) is None
    )


def _append(parts: list[Any], a: Any) -> None:
    kind = type(a)
    if kind in _ATOMS:
        parts.append(kind)
        parts.append(a)
    elif kind in _SYMBOLIC:
        parts.append(a.node._expr)
    elif kind in (list, tuple, torch.Size):
        parts.append(len(a))
        for x in a:
            _append(parts, x)
    elif isinstance(a, torch.Tensor):
        _append_tensor(parts, a)
    else:
        raise TypeError("an argument that no key can hold")


def _append_tensor(parts: list[Any], a: Any) -> None:
    if getattr(a, "fake_mode", None) is None or a.constant is not None or a.numbers:
        raise TypeError("a tensor whose data may be known")
    parts += (
        (a.dtype, a.fake_device, a.is_conj(), a.is_neg())
        if a.dtype.is_complex
        else (a.dtype, a.fake_device)
    )
    for s in a.shape:
        parts.append(s if type(s) is int else s.node._expr)
    parts.append("|")
    for s in a.stride():
        parts.append(s if type(s) is int else s.node._expr)
    offset = a.storage_offset()
    parts.append(offset if type(offset) is int else offset.node._expr)


_TORCH_ATOMS = {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator}
_ATOMS = frozenset({int, float, bool, str, complex, type(None)} | _TORCH_ATOMS)
_SYMBOLIC = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_plain(out: Any) -> bool:
    return getattr(out, "fake_mode", None) is not None and out.constant is None and not out.numbers


def _aliases(out: FakeTensor, args: tuple) -> bool:
    return any(isinstance(a, torch.Tensor) and _is_alias_of(out, a) for a in args)


def _describe(out: FakeTensor) -> tuple[Any, ...]:
    return tuple(out.shape), tuple(out.stride()), out.dtype, out.fake_device


def _rebuild(mode: Mode, item: tuple[Any, ...]) -> FakeTensor:
    sizes, strides, dtype, device = item
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_strided(sizes, strides, dtype=dtype, device=_META)
    return FakeTensor(meta, device, mode)


_NEVER = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift.default,
}
