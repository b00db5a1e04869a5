"""Runs kernels in Triton's interpreter on CPU tensors, without a GPU. Needs numpy, as that
interpreter does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy
import torch
from loopir import BuildError, KernelSource

from inductor_triton.kernels.library import DECORATOR
from inductor_triton.kernels.ops import BITS
from inductor_triton.spec import INDEX, launch_spec
from inductor_triton.toolchain import execute_source, load_part

from .grid import program_counter
from .interpreter_functions import device_functions


def interpreted(source: KernelSource) -> Callable[..., None]:
    """A callable that runs ``source`` in Triton's interpreter; it takes the arguments of any built
    kernel (contract G).
    """
    spec = launch_spec(source)
    interpreter, language = load_part("runtime.interpreter"), load_part("language")
    kernel = interpreter.InterpretedFunction(_plain_function(source, spec.function))
    count_programs = program_counter(spec)

    def launch(*arguments: object) -> None:
        count = len(spec.signature)
        tensors = arguments[: count - spec.workspace]
        sizes = [int(value) for value in arguments[count:]]  # type: ignore[call-overload]
        programs = count_programs(sizes)
        if programs == 0:
            return
        error_flag = torch.zeros(1, dtype=torch.int32, device="cpu")
        extra = [error_flag] if spec.errors else []
        named = {INDEX: language.int32} if spec.index == "dynamic" else {}
        with _adapted(interpreter), numpy.errstate(all="ignore"):
            kernel[(programs,)](*map(_as_stored, tensors), *sizes, *spec.numbers, *extra, **named)
        if error_flag.item():
            raise IndexError(f"{source.kernel.name}: index out of range")

    return launch


def _as_stored(argument: object) -> object:
    if isinstance(argument, torch.Tensor) and argument.dtype in BITS:
        return argument.view(torch.uint8)
    return argument


def _plain_function(source: KernelSource, name: str) -> Callable[..., object]:
    """The kernel as a Python function that calls its device functions as Python functions, so that
    the interpreter is entered only once.
    """
    lines = source.text.splitlines(keepends=True)
    text = "".join(
        line
        for line in lines
        if line.strip() != DECORATOR and not line.startswith("from triton.language.extra")
    )
    try:
        function = execute_source(text, name, **device_functions())
    except SyntaxError as error:
        raise BuildError(
            f"{source.kernel.name}: the source is not valid Python: {error}", output=source.text
        ) from error
    for known, value in function.__globals__.items():  # type: ignore[attr-defined]
        if known.startswith("combine_"):
            value.fn = value
    return function


@contextmanager
def _adapted(interpreter: Any) -> Iterator[None]:
    """Adapts the interpreter: reductions and scans by halves (its own go element by element), no
    overflow checks, which no device makes, and loops with a size as bound (its own turn an array
    into an int, which numpy no longer allows).
    """
    patch_tensor = interpreter._patch_lang_tensor

    def patch_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder, options = interpreter.interpreter_builder, interpreter.interpreter_builder.options
    own = {
        "ReduceOps": type("Reduce", (interpreter.ReduceOps,), {"apply_impl": _reduce}),
        "ScanOps": type("Scan", (interpreter.ScanOps,), {"apply_impl": _scan}),
        "_patch_lang_tensor": patch_index,
    }
    original = {name: getattr(interpreter, name) for name in own}
    for name, value in own.items():
        setattr(interpreter, name, value)
    builder.options = replace(options, sanitize_overflow=False)
    builder.create_dot = partial(_dot, interpreter.TensorHandle)
    builder.create_atomic_rmw = partial(
        _atomic, interpreter.TensorHandle, builder.create_atomic_rmw
    )
    try:
        yield
    finally:
        builder.options = options
        del builder.create_dot, builder.create_atomic_rmw
        for name, value in original.items():
            setattr(interpreter, name, value)


def _dot(handle: Any, a: Any, b: Any, total: Any, *_: object) -> Any:
    """A product of tiles; the interpreter's own treats the bits of bfloat16 as integers."""
    left, right = (_wide(x) for x in (a, b))
    return handle(numpy.matmul(left, right, dtype=numpy.float32) + total.data, total.dtype.scalar)


def _wide(item: Any) -> Any:
    """A tile in float32. The interpreter stores dtypes that numpy lacks as integers."""
    if item.data.dtype == numpy.uint16:
        return (item.data.astype(numpy.uint32) << 16).view(numpy.float32)
    if item.data.dtype == numpy.uint8:
        kind = torch.float8_e5m2 if "5" in str(item.dtype.scalar) else torch.float8_e4m3fn
        return torch.from_numpy(item.data.copy()).view(kind).float().numpy()
    return item.data.astype(numpy.float32)


def _atomic(handle: Any, create: Callable[..., Any], operation: Any, *operands: Any) -> Any:
    """An atomic operation; the interpreter's own treats repeated elements (strides of 0) as if they
    were consecutive.
    """
    arrays = [handle(item.data.copy(order="C"), item.dtype) for item in operands[:3]]
    return create(operation, *arrays, *operands[3:])


def _reduce(self: Any, operands: Any) -> list[Any]:
    arrays = [numpy.moveaxis(item.handle.data, self.axis, -1) for item in operands]
    while arrays[0].shape[-1] > 1:
        half = arrays[0].shape[-1] // 2
        arrays = _combine(
            self, [a[..., :half] for a in arrays], [a[..., half:] for a in arrays], operands
        )
    arrays = [numpy.moveaxis(a, -1, self.axis) if self.keep_dims else a[..., 0] for a in arrays]
    return [self.to_tensor(a, item.dtype) for a, item in zip(arrays, operands)]


def _scan(self: Any, operands: Any) -> list[Any]:
    arrays = [numpy.moveaxis(item.handle.data, self.axis, -1).copy() for item in operands]
    distance = 1
    while distance < arrays[0].shape[-1]:
        shifted = [numpy.roll(a, distance, axis=-1) for a in arrays]
        for array, part in zip(arrays, _combine(self, shifted, arrays, operands)):
            array[..., distance:] = part[..., distance:]
        distance *= 2
    return [
        self.to_tensor(numpy.moveaxis(a, -1, self.axis), item.dtype)
        for a, item in zip(arrays, operands)
    ]


def _combine(self: Any, left: Any, right: Any, operands: Any) -> list[Any]:
    arrays = zip([*left, *right], [*operands, *operands])
    result = self.combine_fn.fn(
        *(self.to_tensor(numpy.ascontiguousarray(array), item.dtype) for array, item in arrays)
    )
    return [item.handle.data for item in (result if isinstance(result, tuple) else (result,))]
