"""Functional wrappers: mutation and views of fakes become values, by torch's C++ functionalisation.

Order of a traced op: autograd, then functionalisation, then the tracer, then the fake mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch.overrides import TorchFunctionMode

from .errors import Unsupported
from .functional_ops import call_functional, is_mutable_custom


def to_functional(fake: torch.Tensor, *, is_leaf: bool = False) -> torch.Tensor:
    """A wrapper of a fake; it requires grad when the fake does, and then accepts in-place ops like a non-leaf, or is one."""
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
    """The value of a size at tracing time, for ordering only; large when it has none."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    return node.hint if node.hint is not None else 1 << 30


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


class WriteRules(TorchFunctionMode):
    """Watches writes where values, which functionalisation makes of them, differ from memory.

    - A tensor whose elements share memory (an expanded one) is not written to, but for filling it.
    - A write through strides with gaps gives a dense value: the tensor still has its own strides. ``moved`` has the ids
      of tensors whose strides the program changed itself.
    - Versions count each tensor that a foreach op writes to.
    - A custom op that writes to its operands runs in its functional form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved: set[int] = set()
        self._dense: dict[int, torch.Tensor] = {}  # lost their gaps, by id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        target = args[0] if args else None
        if is_mutable_custom(func):
            return call_functional(func, args, kwargs)
        if name.startswith("as_strided") and id(target) in self._dense:
            raise Unsupported("AG022", "as_strided of a tensor with gaps in memory that the program has written to")
        if name.startswith("_foreach_") and name.endswith("_"):
            out = func(*args, **kwargs)
            _count_writes(target)
            return out
        if not _is_write(name) or not is_functional(target):
            return func(*args, **kwargs)
        if _overlaps_itself(target):
            if func not in _IDEMPOTENT:
                raise Unsupported("AG029", f"{name} writes to a tensor whose elements share memory")
            func(_one_of_each(target), *args[1:], **kwargs)
            return target
        strides = target.stride()
        out = func(*args, **kwargs)
        if name in _MOVES:
            self.moved.add(id(target))
        elif target.stride() != strides and not _restore_layout(target, strides):
            self._dense[id(target)] = target
        return out


def _restore_layout(wrapper: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Give a written tensor its strides back when they are those of a permuted dense tensor; whether they are."""
    order = sorted(range(wrapper.dim()), key=lambda d: size_hint(strides[d]), reverse=True)
    inverse = sorted(range(wrapper.dim()), key=order.__getitem__)
    value = current_value(wrapper)
    with below_functionalisation(), torch.no_grad():
        laid_out = value.permute(order).contiguous().permute(inverse)
        if laid_out.stride() != strides:
            return False
    torch._functionalize_replace(wrapper, laid_out)
    torch._functionalize_commit_update(wrapper)
    torch._sync(wrapper)
    return True


def _count_writes(tensors: Any) -> None:
    """On the CPU these ops write to one tensor after the other, which versions count; functionalisation leaves that out."""
    written = [t for t in tensors if is_functional(t) and t.device.type == "cpu"]
    if written:
        torch._C._increment_version(written)


def _is_write(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")


_MOVES = frozenset(
    ["t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_", "as_strided_", "resize_", "resize_as_", "set_"]
)
_IDEMPOTENT = frozenset([torch.Tensor.fill_, torch.Tensor.zero_])  # eager writes one value to an element many times


def _one_of_each(t: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, each once."""
    for d, stride in enumerate(t.stride()):
        if type(stride) is int and stride == 0:
            t = t.narrow(d, 0, 1)
    return t


def _overlaps_itself(t: torch.Tensor) -> bool:
    return any(type(stride) is int and stride == 0 and size != 1 for size, stride in zip(t.shape, t.stride()))
