"""Nested ints: the ragged sizes of tensors with ``torch.jagged`` layout.

torch ties a nested int to the tensor of offsets (or of lengths, if there is one), and two are equal
if they come from the same tensor. Copies of a fake keep the nested int of the tensor inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nested._internal import nested_tensor as _jagged
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils import _pytree as pytree

JAGGED_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradNestedTensor)


def is_jagged(value: Any) -> bool:
    """Whether a value is a nested tensor with jagged layout."""
    return type(value) is NestedTensor


def ragged_source(inner: Any) -> torch.Tensor:
    """The tensor that decides the ragged size, from the inner tensors by attribute."""
    return inner["_lengths"] if "_lengths" in inner else inner["_offsets"]


def ragged_size_of(source: torch.Tensor) -> Any:
    """The nested int of offsets or lengths."""
    return _jagged.get_tensor_symint(source)


def set_ragged_size(source: torch.Tensor, size: Any) -> None:
    """Makes ``size`` the ragged size of jagged tensors with these offsets or lengths."""
    _jagged._tensor_symint_registry[source] = size


def keep_ragged_size(new: torch.Tensor, old: torch.Tensor) -> None:
    """Gives a copy of offsets or lengths the ragged size of the original, if it has one."""
    size = _jagged._tensor_symint_registry.get(old)
    if size is not None:
        _jagged._tensor_symint_registry[new] = size


class TracedJagged(torch.Tensor):
    """A jagged tensor under functionalisation: the same to autograd and to operators.

    torch takes a functional tensor with the dispatch key of nested tensors for one of its C++
    class, and reads past its end.

    Attributes:
        held: the jagged tensor.
    """

    held: Any
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Any) -> TracedJagged:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held._size, held._strides, dtype=held.dtype, device=held.device,
            layout=torch.jagged,
            dispatch_sizes_strides_policy="sizes", dispatch_layout=True,
            _extra_dispatch_keys=JAGGED_KEYS,
            storage_size=held._values.untyped_storage().size(),
        )  # fmt: skip
        made.held = held
        return made

    def __init__(self, held: Any) -> None:
        super().__init__()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> TracedJagged:
        return TracedJagged(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        query = _QUERIES.get(func)
        if query is not None:
            return query(args[0].held)
        if func is torch.ops.aten._nested_get_jagged_dummy.default:
            return TracedJagged(args[0].held)  # any will do; torch's own is no fake
        args, kwargs = pytree.tree_map_only(TracedJagged, as_jagged, (args, kwargs or {}))
        return pytree.tree_map_only(NestedTensor, TracedJagged, func(*args, **kwargs))


_QUERIES: dict[Any, Callable[[Any], Any]] = {
    torch.ops.aten.sym_size.default: lambda held: held._size,
    torch.ops.aten.sym_stride.default: lambda held: held._strides,
    torch.ops.aten.dim.default: lambda held: len(held._size),
    torch.ops.prim.layout.default: lambda held: torch.jagged,
    torch.ops.aten.sym_storage_offset.default: lambda held: held._values.storage_offset(),
}


def as_jagged(value: Any) -> Any:
    """The jagged tensor for which a value stands; any other value as it is."""
    return value.held if type(value) is TracedJagged else value


def as_traced(value: Any) -> Any:
    """What stands for a jagged tensor under functionalisation; any other value as it is."""
    return TracedJagged(value) if is_jagged(value) else value
