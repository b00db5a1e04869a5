"""Wrapper subclasses: tensors that hold inner tensors and define ``__torch_dispatch__``.

Such a class has ``__tensor_flatten__`` and ``__tensor_unflatten__``. Its fake is the class around
fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .distributed import call_distributed, group_names, is_distributed, own_context
from .jagged import JAGGED_KEYS, NestedTensor, as_jagged, is_jagged, ragged_source, set_ragged_size

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # pyright: ignore


def is_wrapper_class(cls: Any) -> bool:
    """Whether a class can be flattened to inner tensors and rebuilt."""
    if cls is torch.Tensor or cls.__torch_dispatch__ is _NO_DISPATCH:
        return False
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def is_wrapper(value: object) -> bool:
    """Whether a value is a tensor of a wrapper subclass."""
    return isinstance(value, torch.Tensor) and is_wrapper_class(type(value))


def inner_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors in a tensor, in order; a plain tensor gives itself."""
    if not is_wrapper(value):
        yield value
        return
    for name in flatten(value)[0]:
        yield from inner_tensors(getattr(value, name))


def versions_of(value: torch.Tensor) -> tuple[int, ...]:
    """The version of a tensor, and of the tensors in it, which tell writes."""
    tensors = (value, *inner_tensors(value))
    return tuple(-1 if t.is_inference() else t._version for t in tensors)


@dataclass(frozen=True, slots=True)
class WithObjects:
    """The context of a class whose ``__tensor_flatten__`` names attributes that are no tensors."""

    context: Any
    objects: tuple[tuple[str, Any], ...]
    detail: Any = None
    """What tells objects apart that compare equal."""


def flatten(value: Any) -> tuple[tuple[str, ...], Any]:
    """The attributes of a wrapper that are tensors, and its context, which must compare equal for
    two wrappers of one kind.
    """
    names, context = value.__tensor_flatten__()
    detail = None
    if is_distributed(type(value)):
        context, detail = own_context(context), group_names(value)
    parts = [(name, getattr(value, name)) for name in names]
    objects = tuple(part for part in parts if not isinstance(part[1], torch.Tensor))
    if not objects:
        return tuple(names), context
    return tuple(n for n, part in parts if isinstance(part, torch.Tensor)), WithObjects(
        context, objects, detail
    )


def map_inner(
    function: Callable[[Any], torch.Tensor],
    value: Any,
    outer: Callable[[Any], Any] = lambda size: size,
) -> Any:
    """``value`` with plain tensors mapped; ``outer`` maps the wrappers' sizes and strides."""
    if not is_wrapper(value):
        return function(value)
    names, context = flatten(value)
    inner = {name: map_inner(function, getattr(value, name), outer) for name in names}
    if is_jagged(value):
        set_ragged_size(ragged_source(inner), value._size[value._ragged_idx])
        return rebuild(type(value), inner, context, (), ())  # its sizes follow from those inside
    size, stride = (tuple(map(outer, numbers)) for numbers in (value.shape, value.stride()))
    return rebuild(type(value), inner, context, size, stride)


def rebuild(
    cls: Any,
    inner: dict[str, torch.Tensor],
    context: Any,
    size: Sequence[Any],
    stride: Sequence[Any],
) -> Any:
    """A ``cls`` from its inner tensors by attribute name, and a context of ``flatten``."""
    if isinstance(context, WithObjects):
        inner, context = {**inner, **dict(context.objects)}, context.context
    if cls is NestedTensor:  # the others do not have this flag in their context
        context = {**context, "requires_grad": False}
    return cls.__tensor_unflatten__(
        inner,
        context,
        torch.Size(size) if all(type(s) is int for s in size) else tuple(size),
        tuple(stride),
    )


def same_kind(a: Any, b: Any) -> bool:
    """Whether two tensors have equal classes and contexts at all levels."""
    if type(a) is not type(b):
        return not is_wrapper(a) and not is_wrapper(b)
    if not is_wrapper(a):
        return True
    (names, context), (other_names, other) = flatten(a), flatten(b)
    if names != other_names or context != other:
        return False
    return all(same_kind(getattr(a, name), getattr(b, name)) for name in names)


_library = torch.library.Library("symshapes", "DEF")
_library.define("wrap(Tensor[] inner, SymInt[] numbers, int maker) -> Tensor")
_library.define("inner(Tensor value, str name) -> Tensor")
_library.define("call(Tensor value, int step) -> Tensor")
_INNER = torch.ops.symshapes.inner.default


def inner_tensor(value: Any, name: str) -> torch.Tensor:
    """An inner tensor of a wrapper; traced as an operator without a gradient."""
    if not torch._is_functional_tensor(value):
        return getattr(value, name)
    with torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(JAGGED_KEYS):
        return _INNER(value, name)


WRAP = torch.ops.symshapes.wrap.default
_makers: dict[int, Maker] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Maker:
    """How a program constructs a wrapper subclass.

    Attributes:
        cls: the class.
        names: the attributes that are tensors.
        constants: the other attributes, with their values.
        options: non-number keyword arguments of ``_make_wrapper_subclass``.
        dims: the rank.
        layout: keywords of the numbers after the sizes; ``strides`` stands for one per dim.
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
        wrapper = torch.Tensor._make_wrapper_subclass(
            self.cls, size, **layout, **dict(self.options)
        )  # type: ignore[attr-defined]
        for name, value in (*zip(self.names, inner), *self.constants):
            setattr(wrapper, name, value)
        return wrapper


def wrap_inner(inner: Sequence[torch.Tensor], numbers: Sequence[Any], maker: int) -> Any:
    """The operator ``WRAP``: ``maker`` is the id of the ``Maker`` that gets ``numbers``."""
    return _makers[maker].make(inner, numbers)


CALL = torch.ops.symshapes.call.default
_steps: dict[int, Callable[[Any], Any]] = {}


def call_inner(value: torch.Tensor, step: int) -> Any:
    """The operator ``CALL``: ``step`` is the id of the function that gets ``value``."""
    return _steps[step](value)


ON_INNER: dict[Any, Callable[..., Any]] = {WRAP: wrap_inner, CALL: call_inner}
"""Operators on tensors and wrappers, which a mode must be active for, and what they do."""


def _traced(step: Callable[[Any], Any], value: torch.Tensor) -> Any:
    _steps[id(step)] = step
    return CALL(value, id(step))


@dataclass(frozen=True, slots=True, eq=False)
class WrapperFunction:
    """A ``torch.autograd.Function`` of torch's that reads or builds wrappers in Python, with all of
    its arguments but the first, a tensor.
    """

    function: Any
    args: tuple[Any, ...]
    versions: tuple[int, ...]
    """Of the first argument when the program calls this, as ``versions_of`` returns them."""

    def __call__(self, value: torch.Tensor) -> Any:
        """Its result; traced as one operator in forward, and one in backward."""
        if torch._is_functional_tensor(value):
            return _TracedFunction.apply(value, self)
        return self.function.apply(value, *self.args)


class _Attributes:
    """``ctx`` of the function in a trace: it keeps attributes only."""

    def set_materialize_grads(self, value: bool) -> None:
        pass


class _TracedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, call: WrapperFunction) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        own = _Attributes()
        ctx.set_materialize_grads(False)
        ctx.step = lambda gradient: call.function.backward(own, gradient)[0]
        return _traced(lambda given: call.function.forward(own, given, *call.args), value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None if gradient is None else _traced(ctx.step, gradient), None


def call_wrapper(func: Any, types: Sequence[Any], args: Any, kwargs: Any) -> Any:
    """``func`` by the first wrapper class in ``types`` (in torch's order) that handles it."""
    if func is _INNER:
        return getattr(as_jagged(args[0]), args[1])
    if func in ON_INNER:
        return ON_INNER[func](*args)
    seen = tuple(cls for cls in types if is_wrapper_class(cls))
    for cls in seen:
        call = partial(call_distributed, cls) if is_distributed(cls) else cls.__torch_dispatch__
        result = call(func, seen, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(
        f"{func}: {', '.join(cls.__qualname__ for cls in seen)} returned NotImplemented"
    )
