"""The interpreter's versions of machine instructions and device library functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from inductor_triton.toolchain import load_part

ROUNDING = {"floor": numpy.floor, "ceil": numpy.ceil, "trunc": numpy.trunc, "round": numpy.rint}
ARITHMETIC = {"add_rn": numpy.add, "sub_rn": numpy.subtract}
LIBRARY = {
    "tan": numpy.tan, "asin": numpy.arcsin, "acos": numpy.arccos, "atan": numpy.arctan,
    "expm1": numpy.expm1,
    "log1p": numpy.log1p, "sinh": numpy.sinh, "cosh": numpy.cosh, "tanh": numpy.tanh,
    "pow": numpy.power,
    "atan2": numpy.arctan2, "fmod": numpy.fmod,
}  # fmt: skip


@cache
def device_functions() -> dict[str, object]:
    """Replacements by name: the primitives of ``device_functions.py``, and ``libdevice``."""
    primitives = {
        f"{name}{bits}": _elementwise(function)
        for name, function in (ROUNDING | ARITHMETIC).items()
        for bits in (32, 64)
    }
    library = {name: _elementwise(function) for name, function in LIBRARY.items()}
    return {
        **primitives,
        "exp2_32": _elementwise(numpy.exp2),
        "rsqrt32": _elementwise(lambda x: 1.0 / numpy.sqrt(x)),
        "rcp32": _elementwise(lambda x: 1.0 / x),
        "round_tf32": _elementwise(_round_tf32),
        "fma32": _fma32,
        "interleave": _interleave,
        "wide_product": _wide_product,
        "load_element16": _load_element,
        "load_element32": _load_element,
        "to_bfloat16": _to_bfloat16,
        "libdevice": SimpleNamespace(lgamma=_elementwise(_lgamma), **library),
    }


def _tensor(data: Any, like: Any, dtype: Any = None) -> Any:
    """An interpreter tensor with ``data``; scalar or block like ``like``."""
    language, handle = load_part("language"), load_part("runtime.interpreter").TensorHandle
    dtype = dtype or like.dtype.scalar
    kind = language.block_type(dtype, list(data.shape)) if like.type.is_block() else dtype
    return language.tensor(handle(data, dtype), kind)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies a numpy function to the interpreter's tensors."""

    def apply(*operands: Any) -> Any:
        arrays = numpy.broadcast_arrays(*(operand.handle.data for operand in operands))
        data = numpy.asarray(function(*arrays)).astype(arrays[0].dtype)
        return _tensor(data, max(operands, key=lambda operand: len(operand.shape)))

    return apply


def _load_element(pointer: Any, index: Any, is_valid: Any, is_inside: Any, errors: Any) -> Any:
    language, shape = load_part("language"), index.shape

    def spread(flag: Any) -> Any:
        is_tensor = hasattr(flag, "handle")
        return (language.broadcast_to if is_tensor else _full)(flag, shape)

    def _full(flag: bool, shape: Any) -> Any:
        return language.full(shape, flag, language.int1)

    valid, inside = spread(is_valid), spread(is_inside)
    language.store(errors + index * 0, 1, mask=inside & (valid == 0))
    return language.load(pointer + index, mask=inside & valid, other=0)


def _interleave(a: Any, b: Any) -> Any:
    pairs = numpy.stack([a.handle.data, b.handle.data], axis=-1)
    return _tensor(pairs.reshape(*pairs.shape[:-2], -1), a)


def _wide_product(a: Any, b: int) -> tuple[Any, Any]:
    wide = a.handle.data.astype(numpy.uint64) * numpy.uint64(b)
    return _tensor(wide.astype(numpy.uint32), a), _tensor(
        (wide >> numpy.uint64(32)).astype(numpy.uint32), a
    )


def _fma32(x: Any, y: Any, z: Any) -> Any:
    """Rounds once, since a product of float32 is exact in float64; the interpreter's own rounds
    twice.
    """
    factor = y.handle.data if hasattr(y, "handle") else numpy.float32(y)
    return _tensor(
        (x.handle.data.astype(numpy.float64) * factor + z.handle.data).astype(numpy.float32), x
    )


def _round_tf32(x: Any) -> Any:
    bits = numpy.ascontiguousarray(x).view(numpy.uint32)
    rounded = (bits + numpy.uint32(1 << 12)) & numpy.uint32(0xFFFFE000)
    return numpy.where(numpy.isfinite(x), rounded.view(numpy.float32), x)


def _to_bfloat16(x: Any) -> Any:
    """Rounds to nearest; the interpreter's own conversion truncates."""
    rounded = torch.from_numpy(numpy.ascontiguousarray(x.handle.data)).to(torch.bfloat16)
    return _tensor(rounded.view(torch.uint16).numpy(), x, load_part("language").bfloat16)


def _lgamma(array: Any) -> Any:
    return torch.lgamma(torch.from_numpy(numpy.ascontiguousarray(array))).numpy()
