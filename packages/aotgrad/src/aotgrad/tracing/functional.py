"""Functional wrappers: mutation and views of fakes become values, by torch's C++ functionalisation.

Order of a traced op: autograd, then functionalisation, then the tracer, then the fake mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from symshapes import is_wrapper


def to_functional(fake: torch.Tensor, *, is_leaf: bool = False) -> torch.Tensor:
    """A functional wrapper of a fake.

    It requires grad if the fake does; then it either accepts in-place ops like a non-leaf, or is a
    leaf (``is_leaf``).
    """
    wrapper = torch._to_functional_tensor(fake)
    if is_leaf:
        return wrapper.requires_grad_(fake.requires_grad)
    torch._mirror_autograd_meta_to(fake, wrapper)  # type: ignore[attr-defined]
    return wrapper


def is_functional(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is a functional wrapper."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def current_value(wrapper: torch.Tensor) -> torch.Tensor:
    """The fake that holds a wrapper's value after all writes so far."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def size_hint(size: Any) -> int:
    """The value of a size at tracing time, for ordering only; a large number if it has none."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    return node.hint if node.hint is not None else 1 << 30


def has_hint(size: Any) -> bool:
    """Whether the value of a size is known at tracing time."""
    node = getattr(size, "node", None)
    return node is None or node.hint is not None


def layout_numbers(t: torch.Tensor) -> tuple[Any, ...]:
    """The sizes and strides of a tensor, and its offset in the storage."""
    return (*t.shape, *t.stride(), t.storage_offset())


def extent(sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The number of elements of memory from a tensor's first element through its last."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among the results of an operator, or in one operand."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return (v for v in values if isinstance(v, torch.Tensor))


def storage_id(wrapper: torch.Tensor) -> int:
    """Identity of the storage: equal for a wrapper and its views."""
    return wrapper.untyped_storage()._cdata


def has_own_version(o: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a write to the base does not bump the version of ``o``."""
    if o.is_inference() or base.is_inference():
        return False
    with torch.autograd._unsafe_preserve_version_counter(base):
        before = o._version
        torch._C._increment_version([base])  # type: ignore[attr-defined]
        return o._version == before


@contextmanager
def functionalising() -> Iterator[None]:
    """A context in which ops on plain tensors return functional wrappers, too; views are replayed
    as views, not copies.
    """
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def below_functionalisation() -> torch._C._ExcludeDispatchKeyGuard:
    """A context in which new tensors are plain fakes again."""
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    )


def restore_layout(wrapper: torch.Tensor, strides: Sequence[Any], tracer: Any) -> bool:
    """Restores a written tensor's strides; returns whether its value in the graph has them, too."""
    order = sorted(range(wrapper.dim()), key=lambda d: size_hint(strides[d]), reverse=True)
    inverse = sorted(range(wrapper.dim()), key=order.__getitem__)
    value = current_value(wrapper)
    with below_functionalisation(), torch.no_grad():
        laid_out = value.permute(order).contiguous().permute(inverse)
        is_dense = laid_out.stride() == strides
        if not is_dense and all(
            a == b or n == 1 for n, a, b in zip(laid_out.shape, laid_out.stride(), strides)
        ):
            laid_out, is_dense = laid_out.as_strided(laid_out.shape, strides), True
        if not is_dense and is_wrapper(laid_out):
            return False
        if not is_dense:
            laid_out = tracer.with_strides(laid_out, strides)
    replace_value(wrapper, laid_out)
    return is_dense


def replace_value(wrapper: torch.Tensor, fake: torch.Tensor) -> None:
    """Writes a fake to a wrapper, as an in-place op does."""
    torch._functionalize_replace(wrapper, fake)
    torch._functionalize_commit_update(wrapper)
    torch._sync(wrapper)
