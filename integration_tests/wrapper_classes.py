"""Wrapper subclasses of the kinds that programs have, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing


class Pair(torch.Tensor):
    """Two tensors: every operator runs on both. Pairs may hold pairs."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a, b):
        kwargs = {
            "strides": a.stride(),
            "storage_offset": a.storage_offset(),
            "device": a.device,
            "dtype": a.dtype,
        }
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, requires_grad=a.requires_grad, **kwargs
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Pair({self.a!r}, {self.b!r})"

    def swapped(self):
        return Pair(self.b, self.a)

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first = pytree.tree_map_only(Pair, lambda x: x.a, (args, kwargs or {}))
        second = pytree.tree_map_only(Pair, lambda x: x.b, (args, kwargs or {}))
        left, spec = pytree.tree_flatten(func(*first[0], **first[1]))
        right = pytree.tree_leaves(func(*second[0], **second[1]))
        both = [Pair(x, y) if isinstance(x, torch.Tensor) else x for x, y in zip(left, right)]
        return return_and_correct_aliasing(func, args, kwargs, pytree.tree_unflatten(both, spec))


class Coerced(Pair):
    """A pair whose gradient may come as a plain tensor, and the other way round."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Coerced(inner["a"], inner["b"])

    def __coerce_same_metadata_as_tangent__(self, context, cls=None):
        return self.a if cls is torch.Tensor else Pair(self.a, self.b)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        pairs = pytree.tree_map_only(Coerced, lambda x: Pair(x.a, x.b), (args, kwargs or {}))
        return pytree.tree_map_only(Pair, lambda x: Coerced(x.a, x.b), func(*pairs[0], **pairs[1]))


class Scaled(torch.Tensor):
    """int8 data times a scale per row, as a quantised weight is: most operators see the product."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data, scale, dtype):
        kwargs = {"strides": data.stride(), "device": data.device, "dtype": dtype}
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, requires_grad=False, **kwargs)

    def __init__(self, data, scale, dtype):
        self.values, self.scale = data, scale

    def dequantize(self):
        return self.values.to(self.dtype) * self.scale

    def __tensor_flatten__(self):
        return ("values", "scale"), {"dtype": self.dtype}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["values"], inner["scale"], context["dtype"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.alias.default, aten.clone.default, aten.t.default):
            return cls(func(args[0].values), func(args[0].scale), args[0].dtype)
        if func is aten.mul.Tensor and not isinstance(args[1], torch.Tensor):
            return cls(args[0].values, args[0].scale * args[1], args[0].dtype)
        plain = pytree.tree_map_only(Scaled, Scaled.dequantize, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Dispatched(Scaled):
    """Scaled data whose products are functions of its own, as torchao's are."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, weight, bias = (*args, None)[:3]
            product = x @ weight.values.to(x.dtype).t() * weight.scale.t()
            return product if bias is None else product + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def pair(
    seed: int = 0, shape: tuple[int, ...] = (2, 3), *, grad: bool = False, cls: Any = Pair
) -> Any:
    """A random pair."""
    generator = torch.Generator().manual_seed(seed)
    return cls(
        torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    ).requires_grad_(grad)


def nested(*, grad: bool = False) -> Any:
    """A pair of pairs."""
    return Pair(pair(1), pair(2)).requires_grad_(grad)


def scaled(dtype: torch.dtype = torch.float32, cls: type[Scaled] = Scaled) -> Scaled:
    """A random quantised matrix."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(-8, 8, (4, 3), dtype=torch.int8, generator=generator)
    return cls(data, torch.rand(4, 1, generator=generator).to(dtype), dtype)


def assert_same(result: Any, expected: Any) -> None:
    """Equal types, structure, contexts, values and requires_grad, down to the tensors inside."""
    assert type(result) is type(expected), (type(result), type(expected))
    if isinstance(expected, (tuple, list)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected):
            assert_same(one, other)
    elif isinstance(expected, (Pair, Scaled)):
        (names, context), (others, other) = (
            result.__tensor_flatten__(),
            expected.__tensor_flatten__(),
        )
        assert (names, context) == (others, other)
        assert (result.requires_grad, result.shape, result.stride()) == (
            expected.requires_grad,
            expected.shape,
            expected.stride(),
        )
        for name in names:
            assert_same(getattr(result, name), getattr(expected, name))
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected)
        assert (result.requires_grad, result.stride()) == (
            expected.requires_grad,
            expected.stride(),
        )
    else:
        assert result == expected


def ones_like(x: torch.Tensor) -> torch.Tensor:
    """A tangent of ones of the class of ``x``."""
    return type(x)(ones_like(x.a), ones_like(x.b)) if isinstance(x, Pair) else torch.ones_like(x)
