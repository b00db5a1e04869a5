"""Functional wrappers: mutation and views of fakes become values, by torch's C++ functionalisation.

Order of a traced op: autograd, then functionalisation, then the tracer, then the fake mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import Unsupported


def to_functional(fake: torch.Tensor, *, is_leaf: bool = False) -> torch.Tensor:
    """A wrapper of a fake; it requires grad when the fake does, and then accepts in-place ops like a non-leaf, or is one."""
    wrapper = torch._to_functional_tensor(fake)
    if is_leaf:
        return wrapper.requires_grad_(fake.requires_grad)
    torch._mirror_autograd_meta_to(fake, wrapper)  # type: ignore[attr-defined]
    return wrapper


def is_functional(value: object) -> bool:
    """Whether ``value`` is a functional wrapper."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def current_value(wrapper: torch.Tensor) -> torch.Tensor:
    """The fake that holds a wrapper's value after all writes so far."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def storage_id(wrapper: torch.Tensor) -> int:
    """Identity of the storage: equal for a wrapper and its views."""
    return wrapper.untyped_storage()._cdata


@contextmanager
def functionalising() -> Iterator[None]:
    """Ops on plain tensors give functional wrappers, too; views are replayed as views, not copies."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def below_functionalisation() -> torch._C._ExcludeDispatchKeyGuard:
    """A context in which tensors made are plain fakes again."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))


class RefuseOverlappingWrites(TorchFunctionMode):
    """Refuses writes to a tensor whose elements share memory (an expanded one): as values they would differ from eager's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and _is_write(getattr(func, "__name__", "")) and is_functional(args[0]) and _overlaps_itself(args[0]):
            raise Unsupported("AG029", f"{func.__name__} writes to a tensor whose elements share memory")
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "").startswith("_foreach_") and func.__name__.endswith("_"):
            _count_writes(args[0])
        return out


def _count_writes(tensors: Any) -> None:
    """On the CPU these ops write to one tensor after the other, which versions count; functionalisation leaves that out."""
    written = [t for t in tensors if is_functional(t) and t.device.type == "cpu"]
    if written:
        torch._C._increment_version(written)


def _is_write(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")


def _overlaps_itself(t: torch.Tensor) -> bool:
    return any(type(stride) is int and stride == 0 and size != 1 for size, stride in zip(t.shape, t.stride()))
