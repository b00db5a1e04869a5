"""Wrapper subclasses: tensors that hold other tensors, and say in ``__torch_dispatch__`` what
operators do to these.

Such a class has ``__tensor_flatten__`` and ``__tensor_unflatten__``. The fake of one is the class
around fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # pyright: ignore


def is_wrapper_class(cls: Any) -> bool:
    """Whether tensors of a class can be taken apart into the tensors that they hold, and put
    together again.
    """
    if cls is torch.Tensor or cls.__torch_dispatch__ is _NO_DISPATCH:
        return False
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def is_wrapper(value: object) -> bool:
    """Whether a value is a tensor of a wrapper subclass."""
    return isinstance(value, torch.Tensor) and is_wrapper_class(type(value))


def inner_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors in a tensor: itself, or what it holds, in order."""
    if not is_wrapper(value):
        yield value
        return
    for name in value.__tensor_flatten__()[0]:
        yield from inner_tensors(getattr(value, name))


def map_inner(
    function: Callable[[Any], torch.Tensor],
    value: Any,
    outer: Callable[[Any], Any] = lambda size: size,
) -> Any:
    """A tensor with the plain tensors in it replaced; ``outer`` gives the sizes and strides of the
    classes around.
    """
    if not is_wrapper(value):
        return function(value)
    names, context = value.__tensor_flatten__()
    inner = {name: map_inner(function, getattr(value, name), outer) for name in names}
    return rebuild(
        type(value),
        inner,
        context,
        tuple(map(outer, value.shape)),
        tuple(map(outer, value.stride())),
    )


def rebuild(
    cls: Any,
    inner: dict[str, torch.Tensor],
    context: Any,
    size: Sequence[Any],
    stride: Sequence[Any],
) -> Any:
    """A tensor of the wrapper subclass ``cls`` by its ``__tensor_unflatten__``; ``inner``: the
    tensors in it by attribute.
    """
    return cls.__tensor_unflatten__(
        inner, context, torch.Size(size) if all(type(s) is int for s in size) else size, stride
    )


def same_kind(a: Any, b: Any) -> bool:
    """Whether two tensors are of one class, with equal contexts, down to the plain tensors in
    them.
    """
    if type(a) is not type(b):
        return not is_wrapper(a) and not is_wrapper(b)
    if not is_wrapper(a):
        return True
    (names, context), (others, other) = a.__tensor_flatten__(), b.__tensor_flatten__()
    if list(names) != list(others) or context != other:
        return False
    return all(same_kind(getattr(a, name), getattr(b, name)) for name in names)


_library = torch.library.Library("symshapes", "DEF")
_library.define("wrap(Tensor[] inner, SymInt[] numbers, int maker) -> Tensor")
_library.define("inner(Tensor value, str name) -> Tensor")
_INNER = torch.ops.symshapes.inner.default


def inner_tensor(value: Any, name: str) -> torch.Tensor:
    """The tensor that one of a wrapper subclass holds under a name; traced as an operator without a
    gradient.
    """
    if not torch._is_functional_tensor(value):
        return getattr(value, name)
    with torch.no_grad():
        return _INNER(value, name)


WRAP = torch.ops.symshapes.wrap.default
_makers: dict[int, Maker] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Maker:
    """How a program makes tensors of a wrapper subclass.

    Attributes:
        cls: the class.
        names: the attributes that are tensors.
        constants: the other attributes, with their values.
        options: keyword arguments of ``_make_wrapper_subclass`` that are no numbers.
        dims: how many sizes there are.
        layout: which other numbers follow them, as keywords; ``strides`` are as many as sizes.
    """

    cls: Any
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    dims: int
    layout: tuple[str, ...]

    def __call__(self, inner: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """A new tensor; traced as an operator without a gradient."""
        if not any(map(torch._is_functional_tensor, inner)):
            return self.make(inner, numbers)
        _makers[id(self)] = self
        with torch.no_grad():
            return WRAP(list(inner), list(numbers), id(self))

    def make(self, inner: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """A new tensor around others."""
        rest = iter(numbers)
        size = [next(rest) for _ in range(self.dims)]
        layout = {
            name: [next(rest) for _ in size] if name == "strides" else next(rest)
            for name in self.layout
        }
        made = torch.Tensor._make_wrapper_subclass(self.cls, size, **layout, **dict(self.options))  # type: ignore[attr-defined]
        for name, value in (*zip(self.names, inner), *self.constants):
            setattr(made, name, value)
        return made


def wrap_inner(inner: Sequence[torch.Tensor], numbers: Sequence[Any], maker: int) -> Any:
    """What the operator ``WRAP`` makes of plain tensors and the ``numbers`` of the wrappers around
    them.

    ``maker`` is the number of a ``Maker``, which knows the layout.
    """
    return _makers[maker].make(inner, numbers)


def call_wrapper(func: Any, types: Sequence[Any], args: Any, kwargs: Any) -> Any:
    """``func(*args, **kwargs)`` as the first of the wrapper classes in ``types`` says, which torch
    has put in order.
    """
    if func is _INNER:
        return getattr(args[0], args[1])
    if func is WRAP:
        return wrap_inner(*args)
    seen = tuple(cls for cls in types if is_wrapper_class(cls))
    for cls in seen:
        result = cls.__torch_dispatch__(func, seen, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(
        f"{func}: {', '.join(cls.__qualname__ for cls in seen)} returned NotImplemented"
    )
