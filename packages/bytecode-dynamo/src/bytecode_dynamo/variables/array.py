"""NumPy arrays: tensors in the graph, computed by ``torch._numpy``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from symshapes import FakeTensor
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.guards.tensor_source import ArraySource
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import (
    call_known,
    call_torch,
    constant_of,
    decide,
    new_iterator,
    new_list,
    new_value,
    raising,
)
from bytecode_dynamo.state.requirements import remember_tensor
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, BoundRuleVariable, KeyedVariable, Kwargs, realize
from .constant import NONE, SCALAR, ConstantVariable, SliceVariable, SymbolicVariable
from .function import FunctionVariable
from .sequence import new_tuple
from .tensor import TensorVariable
from .wrap import tracker_for, wrap_object

try:
    import numpy
    import torch._numpy as torch_numpy
except ImportError:  # torch works without NumPy
    numpy = torch_numpy = cast("Any", None)


METHODS = frozenset(
    """
    all any argmax argmin argsort astype clip copy cumprod cumsum diagonal dot flatten max mean min
    nonzero prod ravel repeat reshape round sort squeeze std sum swapaxes take trace transpose var
    fill
    """.split()
)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayVariable(KeyedVariable):
    """A ``numpy.ndarray``, or a NumPy number that the graph computes (``scalar``)."""

    tensor: TensorVariable
    scalar: bool = False

    def python_type(self) -> type:
        return _scalar_type(self.tensor.fake) if self.scalar else numpy.ndarray

    def describe(self) -> str:
        return f"array {self.source.shown if self.source is not None else self.tensor.node.name}"

    def truth(self, ctx: Context) -> bool:
        count = self.tensor.fake.numel()
        if decide(ctx, lambda: bool(count == 1), self.describe()):
            return self.tensor.truth(ctx)
        with raising(ctx, ValueError):
            return bool(numpy.zeros(2 if decide(ctx, lambda: bool(count), self.describe()) else 0))

    def as_proxy(self, ctx: Context) -> Any:
        raise GraphBreak("BD005", f"{self.describe()} as an argument of a torch call")

    def length(self, ctx: Context) -> VariableTracker:
        return self.tensor.length(ctx)

    def iterate(self, ctx: Context) -> VariableTracker:
        size = constant_of(ctx, self.length(ctx), "the length of an array")
        return new_iterator(ctx, [self.get_item(ctx, ConstantVariable(k)) for k in range(size)])

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return call_array(ctx, operator.getitem, [self, key], {})

    def set_item(self, ctx: Context, key: VariableTracker, value: VariableTracker) -> None:
        call_array(ctx, operator.setitem, [self, key, value], {})

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        fake = self.tensor.fake
        if name in ("shape", "ndim"):
            return new_value(ctx, tuple(fake.shape) if name == "shape" else fake.dim())
        if name == "size":
            return new_value(ctx, fake.numel())
        if name == "dtype":
            return ConstantVariable(_dtype(fake))
        if name in ("T", "real", "imag", "flat"):
            return call_array(ctx, operator.attrgetter(name), [self], {})
        return BoundRuleVariable(self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name in ("item", "tolist"):
            return self.tensor.call_method(ctx, name, args, kwargs)
        if name not in METHODS:
            raise GraphBreak("BD005", f"{name} of {self.describe()}")
        return call_array(
            ctx,
            getattr(torch_numpy.ndarray, name),
            [self, *args],
            kwargs,
            getattr(numpy.ndarray, name),
        )

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(_to_numpy, self.tensor, self.scalar)
        gen.keep(self.key)


def _dtype(tensor: torch.Tensor) -> Any:
    return torch.empty(0, dtype=tensor.dtype, device="cpu").numpy().dtype


def _scalar_type(tensor: torch.Tensor) -> type:
    return _dtype(tensor).type


def _to_numpy(tensor: torch.Tensor, scalar: bool) -> Any:
    array = tensor.detach().numpy()
    return array[()] if scalar else array


def as_array(tensor: VariableTracker, scalar: bool = False) -> VariableTracker:
    """The array over a tensor that the graph computes."""
    assert isinstance(tensor, TensorVariable)
    return ArrayVariable(Identity(numpy.ndarray), tensor, scalar)


def is_folded(left: VariableTracker, right: VariableTracker) -> bool:
    """Whether an operator is folded while capturing: both numbers are known, or one is NumPy's."""
    known = [side.value for side in (left, right) if type(side) is ConstantVariable]
    if len(known) != 1:
        return len(known) == 2
    return isinstance(known[0], SCALAR) and (
        isinstance(left, SymbolicVariable) or isinstance(right, SymbolicVariable)
    )


def to_torch_numpy(value: Any) -> Any:
    """An argument for ``torch._numpy``: its arrays in place of tensors."""
    return torch_numpy.ndarray(value) if isinstance(value, torch.Tensor) else value


def _to_tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, torch_numpy.ndarray) else value


def _in_torch(function: Callable[..., Any], name: str) -> OpaqueCall:
    """A function of arrays, as one of tensors."""

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(to_torch_numpy, (args, kwargs))
        return pytree.tree_map(_to_tensor, function(*args, **kwargs))

    return OpaqueCall(run, f"numpy_{name}")


def call_array(
    ctx: Context, function: Any, args: Args, kwargs: Kwargs, reference: Any = None
) -> VariableTracker:
    """Record a call of a function of arrays; ``reference`` is NumPy's own, if they differ.

    NumPy itself, called on other arrays of the same types and shapes, gives the types and shapes of
    the results.
    """
    reference = reference or function
    name = getattr(reference, "__name__", "attribute")
    examples: _Examples = []
    expected = _expected(ctx, reference, args, kwargs, examples)
    given = [_unwrapped(ctx, arg) for arg in args]
    named = {key: _unwrapped(ctx, value) for key, value in kwargs.items()}
    result = call_torch(ctx, _in_torch(function, name), given, named)
    if name in _IN_PLACE_OPERATORS:
        return args[0]
    return NONE if expected is None else _wrapped(ctx, result, expected, name, examples)


_Examples = list[tuple[Any, Any]]
"""Example arrays for NumPy itself, with the fake tensors that they stand for."""


def _expected(ctx: Context, reference: Any, args: Any, kwargs: Any, examples: _Examples) -> Any:
    """NumPy's result for example arguments."""
    given = [_example(ctx, arg, examples) for arg in args]
    named = {key: _example(ctx, value, examples) for key, value in kwargs.items()}
    try:
        with numpy.errstate(all="ignore"):
            return reference(*given, **named)
    except Exception as error:
        raise GraphBreak("BD005", f"a NumPy call: {type(error).__name__}: {error}") from None


def _example(ctx: Context, value: VariableTracker, examples: _Examples) -> Any:
    if isinstance(value, ArrayVariable):
        fake = value.tensor.fake
        shape = tuple(decide(ctx, size.__index__, "the size of an array") for size in fake.shape)
        made = _laid_out(
            shape,
            tuple(decide(ctx, step.__index__, "a stride of an array") for step in fake.stride()),
            _dtype(fake),
        )
        if fake.known_value is not None:
            made[...] = fake.known_value.numpy()
        examples.append((made, fake))
        return made[()] if value.scalar else made
    if value.python_type() in (list, tuple):
        return value.python_type()(
            _example(ctx, realize(ctx, item), examples) for item in value.unpack(ctx)
        )
    if isinstance(value, SliceVariable):
        return slice(*(part.as_constant(ctx) for part in value.parts))
    return constant_of(ctx, value, "an argument of a NumPy function")


def _laid_out(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """An array with a tensor's layout."""
    extent = (
        1 + sum((size - 1) * step for size, step in zip(shape, strides)) if 0 not in shape else 0
    )
    flat = numpy.asarray(numpy.random.default_rng(0).random(extent)).astype(dtype)
    return numpy.lib.stride_tricks.as_strided(
        flat, shape, [step * flat.itemsize for step in strides]
    )


_IN_PLACE_OPERATORS = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift".split()
)


def _unwrapped(ctx: Context, value: VariableTracker) -> VariableTracker:
    """An argument with tensors in place of arrays."""
    if isinstance(value, ArrayVariable):
        return value.tensor
    kind = value.python_type()
    if issubclass(kind, (numpy.dtype, type)) and not isinstance(value, FunctionVariable):
        known = value.as_constant(ctx)
        plain = isinstance(known, type) and not issubclass(known, numpy.generic)
        # a form that FX can print
        return value if plain else ConstantVariable(numpy.dtype(known).name)
    if issubclass(kind, numpy.generic) and isinstance(value, ConstantVariable):
        dtype = torch.from_numpy(numpy.zeros(0, value.value.dtype)).dtype
        return call_known(
            ctx,
            torch.tensor,
            [ConstantVariable(value.value.item())],
            {"dtype": ConstantVariable(dtype)},
        )
    if kind in (list, tuple):
        items = [_unwrapped(ctx, realize(ctx, item)) for item in value.unpack(ctx)]
        return new_list(ctx, items) if kind is list else new_tuple(items)
    if isinstance(value, TensorVariable):
        raise GraphBreak("BD005", f"{value.describe()} as an argument of a NumPy function")
    return value


def _wrapped(
    ctx: Context, result: VariableTracker, expected: Any, name: str, examples: _Examples
) -> VariableTracker:
    """The results, with NumPy's types."""
    if isinstance(result, TensorVariable) and isinstance(expected, (numpy.ndarray, numpy.generic)):
        if _dtype(result.fake) == expected.dtype and tuple(result.fake.shape) == expected.shape:
            strides = tuple(step // max(expected.itemsize, 1) for step in expected.strides)
            moved = [
                a
                for size, a, b in zip(expected.shape, result.fake.stride(), strides)
                if size > 1 and a != b
            ]
            if (
                0 not in expected.shape
                and min(strides, default=0) >= 0
                and tuple(result.fake.stride()) != strides
            ):
                layout = [result, new_value(ctx, expected.shape), new_value(ctx, strides)]
                result = call_torch(ctx, _copied if moved else torch.as_strided, layout)
            known = cast("TensorVariable", result).fake.known_value
            if isinstance(expected, numpy.generic) and known is not None:
                return ConstantVariable(known.numpy()[()])
            if isinstance(expected, numpy.ndarray):
                result = _in_memory(ctx, cast("TensorVariable", result), expected, name, examples)
            return as_array(result, isinstance(expected, numpy.generic))
    elif type(expected) in (list, tuple) and result.python_type() in (list, tuple):
        items = [
            _wrapped(ctx, realize(ctx, item), part, name, examples)
            for item, part in zip(result.unpack(ctx), expected, strict=True)
        ]
        return new_list(ctx, items) if type(expected) is list else new_tuple(items)
    raise GraphBreak("BD005", f"numpy's {name}: torch has no function with these results")


def _in_memory(
    ctx: Context, result: TensorVariable, expected: Any, name: str, examples: _Examples
) -> TensorVariable:
    """The result in its own memory if NumPy copies, as ``astype`` always does."""
    storage = result.fake.untyped_storage()._cdata
    for array, fake in examples:
        viewed = fake.untyped_storage()._cdata == storage
        if viewed and not numpy.may_share_memory(array, expected):
            return cast("TensorVariable", call_torch(ctx, "clone", [result]))
        if not viewed and numpy.may_share_memory(array, expected):
            raise GraphBreak("BD005", f"numpy's {name} gives a view where torch copies")
    return result


def _copy_to(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


_copied = OpaqueCall(_copy_to, "numpy_copy_to")


def _facts(value: Any) -> Any:
    if type(value) is not numpy.ndarray:
        return (type(value),)
    return type(value), value.dtype, value.shape, value.strides, value.flags.writeable


_PARTS = ("type({})", "{}.dtype", "{}.shape", "{}.strides", "{}.flags.writeable")


def wrap_array(ctx: Context, value: Any, source: Source) -> VariableTracker:
    """An existing array: the graph gets a tensor over its memory."""
    try:
        tensor = (
            torch.from_numpy(value)
            if type(value) is numpy.ndarray and value.flags.writeable
            else None
        )
    except (TypeError, ValueError):
        tensor = None
    if tensor is None:
        return wrap_object(ctx, value, source)
    same = Answer("{}", _facts, _facts(value), parts=_PARTS)
    ctx.guards.require(source, GuardKind.CUSTOM, same)
    fake: Any = ctx.mode.from_real(tensor, source=source.name, symbols={})
    node = ctx.graph.add_input(ArraySource(source), tensor, fake)
    held = TensorVariable(node, cast("FakeTensor", fake), torch.Tensor, source=ArraySource(source))
    remember_tensor(ctx, held)
    made = ArrayVariable(Identity(numpy.ndarray, value, source), held, source=source)
    return ctx.effects.remember(value, made)


if numpy is not None:
    tracker_for(numpy.ndarray)(wrap_array)
