"""Running kernels in Triton's interpreter, on CPU tensors and without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from loopir import BuildError, KernelSource

from inductor_triton.codegen import launch_spec
from inductor_triton.grid import program_count
from inductor_triton.library import DECORATOR
from inductor_triton.toolchain import execute_source, load_part

try:
    import numpy
except ImportError:  # Only the interpreter needs it, and Triton's own brings the message.
    numpy = None  # type: ignore[assignment]


def interpreted(source: KernelSource) -> Callable[..., None]:
    """A callable that runs ``source`` in Triton's interpreter; arguments as of any built kernel (contract G)."""
    spec = launch_spec(source)
    interpreter = load_part("runtime.interpreter")
    text = source.text.replace(f"{DECORATOR}\n", "").replace("from triton.language.extra.cuda import libdevice\n", "")
    try:
        function: Any = execute_source(text, spec.function, **_overrides())
    except SyntaxError as error:
        raise BuildError(f"{source.kernel.name}: the source is not valid Python: {error}", output=source.text) from error
    for name, value in function.__globals__.items():
        if name.startswith("combine_"):
            value.fn = value
    kernel = interpreter.InterpretedFunction(function)
    language = load_part("language")

    def launch(*arguments: object) -> None:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        sizes = [int(value) for value in arguments[len(tensors) :]]  # type: ignore[call-overload]
        programs = program_count(spec, sizes)
        if programs == 0:
            return
        error_flag = torch.zeros(1, dtype=torch.int32)
        extra: list[object] = [error_flag] if spec.errors else []
        named = {"INDEX": language.int32} if spec.index == "dynamic" else {}
        with _adapted(interpreter), numpy.errstate(all="ignore"):
            kernel[(programs,)](*tensors, *sizes, *extra, **named)
        if error_flag.item():
            raise IndexError(f"{source.kernel.name}: index out of range")

    return launch


def build_interpreted(sources: Sequence[KernelSource]) -> list[Callable[..., None]]:
    """One interpreted callable per source."""
    return [interpreted(source) for source in sources]


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy function as one of the interpreter's tensors."""
    handle_type = load_part("runtime.interpreter").TensorHandle
    tensor_type = load_part("language").tensor

    def apply(*operands: Any) -> Any:
        arrays = numpy.broadcast_arrays(*(operand.handle.data for operand in operands))
        data = numpy.asarray(function(*arrays)).astype(arrays[0].dtype)
        shaped = max(operands, key=lambda operand: len(operand.shape))
        kind = shaped.type
        if len(operands) > 1 and shaped.type.is_block():
            kind = load_part("language").block_type(shaped.dtype, list(data.shape))
        return tensor_type(handle_type(data, operands[0].dtype.scalar), kind)

    return apply


def _by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[numpy.ndarray], numpy.ndarray]:
    return lambda array: function(torch.from_numpy(numpy.ascontiguousarray(array))).numpy()


def _fma(x: numpy.ndarray, y: numpy.ndarray, z: numpy.ndarray) -> numpy.ndarray:
    return x.astype(numpy.float64) * y + z


@cache
def _overrides() -> dict[str, object]:
    """The interpreter's form of what is a machine instruction or a library function on the device."""
    language = load_part("language")
    handle_type = load_part("runtime.interpreter").TensorHandle

    def to_bfloat16(x: Any) -> Any:
        # The interpreter's own conversion truncates.
        data = numpy.atleast_1d(x.handle.data)
        bits = torch.from_numpy(numpy.ascontiguousarray(data)).to(torch.bfloat16).view(torch.uint16).numpy()
        kind = language.block_type(language.bfloat16, list(x.shape)) if x.type.is_block() else language.bfloat16
        return language.tensor(handle_type(bits, language.bfloat16), kind)

    def fma32(x: Any, y: float, z: Any) -> Any:
        return multiply_add(x, _full_like(x, y), z)

    def _full_like(x: Any, value: Any) -> Any:
        if hasattr(value, "handle"):
            return value
        return language.tensor(handle_type(numpy.full_like(x.handle.data, value), x.dtype.scalar), x.type)

    multiply_add = _elementwise(_fma)
    rounding = {"floor": numpy.floor, "ceil": numpy.ceil, "trunc": numpy.trunc, "round": numpy.rint}
    primitives = {f"{name}{bits}": _elementwise(function) for name, function in rounding.items() for bits in (32, 64)}
    library = SimpleNamespace(
        tan=_elementwise(numpy.tan), asin=_elementwise(numpy.arcsin), acos=_elementwise(numpy.arccos),
        atan=_elementwise(numpy.arctan), lgamma=_elementwise(_by_torch(torch.lgamma)), expm1=_elementwise(numpy.expm1),
        log1p=_elementwise(numpy.log1p), sinh=_elementwise(numpy.sinh), cosh=_elementwise(numpy.cosh),
        tanh=_elementwise(numpy.tanh), pow=_elementwise(numpy.power), atan2=_elementwise(numpy.arctan2),
        fmod=_elementwise(numpy.fmod),
    )  # fmt: skip
    rsqrt = _elementwise(lambda x: 1.0 / numpy.sqrt(x))
    return {**primitives, "rsqrt32": rsqrt, "fma32": fma32, "to_bfloat16": to_bfloat16, "libdevice": library}


@contextmanager
def _adapted(interpreter: Any) -> Any:
    """The interpreter with reductions and scans by halves (its own go element by element), and with loops up to a size
    (its own turn an array of one element into an int, which numpy no longer allows)."""
    reduce_type, scan_type = interpreter.ReduceOps, interpreter.ScanOps
    patch_tensor = interpreter._patch_lang_tensor

    class Reduce(reduce_type):
        def apply_impl(self, input: Any) -> Any:
            arrays = [numpy.moveaxis(item.handle.data, self.axis, -1) for item in input]
            while arrays[0].shape[-1] > 1:
                half = arrays[0].shape[-1] // 2
                arrays = _call(self, [a[..., :half] for a in arrays], [a[..., half:] for a in arrays], input)
            if self.keep_dims:
                arrays = [numpy.moveaxis(a, -1, self.axis) for a in arrays]
            else:
                arrays = [a[..., 0] for a in arrays]
            return [self.to_tensor(a, item.dtype) for a, item in zip(arrays, input)]

    class Scan(scan_type):
        def apply_impl(self, input: Any) -> Any:
            arrays = [numpy.moveaxis(item.handle.data, self.axis, -1).copy() for item in input]
            distance = 1
            while distance < arrays[0].shape[-1]:
                shifted = [numpy.roll(a, distance, axis=-1) for a in arrays]
                for array, part in zip(arrays, _call(self, shifted, arrays, input)):
                    array[..., distance:] = part[..., distance:]
                distance *= 2
            return [self.to_tensor(numpy.moveaxis(a, -1, self.axis), item.dtype) for a, item in zip(arrays, input)]

    def _call(self: Any, left: Any, right: Any, input: Any) -> list[numpy.ndarray]:
        operands = [
            self.to_tensor(numpy.ascontiguousarray(a), item.dtype) for a, item in zip([*left, *right], [*input, *input])
        ]
        result = self.combine_fn.fn(*operands)
        return [item.handle.data for item in (result if isinstance(result, tuple) else (result,))]

    def patch_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter.ReduceOps, interpreter.ScanOps, interpreter._patch_lang_tensor = Reduce, Scan, patch_index
    try:
        yield
    finally:
        interpreter.ReduceOps, interpreter.ScanOps, interpreter._patch_lang_tensor = reduce_type, scan_type, patch_tensor
