"""Matrix products with contiguous results; grouped ones pad rows to 16 bytes."""

from __future__ import annotations

from typing import Any

import torch

from .format import is_fake, new_empty, require_equal, require_one_dtype
from .registry import RULES, bind

aten = torch.ops.aten
GROUPED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _agree(mode: Any, operands: tuple, *ranks: int) -> bool:
    """Whether a rule here applies: fakes of one dtype and device, of these ranks."""
    first = operands[0]
    if not all(is_fake(x) and x.fake_mode is mode and x.dim() in ranks for x in operands):
        return False
    return all(x.dtype is first.dtype and x.fake_device == first.fake_device for x in operands)


def _product(mode: Any, a: Any, b: Any) -> Any:
    env = mode.shape_env
    if not require_equal(env, a.shape[-1], b.shape[-2]):
        return NotImplemented
    if a.dim() == 3 and not require_equal(env, a.shape[0], b.shape[0]):
        return NotImplemented
    return new_empty(mode, a, (*a.shape[:-1], b.shape[-1]))


@RULES.register("mm bmm")
def product(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    rank = 2 if func is aten.mm.default else 3
    if rank == 2:  # bmm's meta kernel checks dtypes itself
        require_one_dtype(("m1", args[0]), ("m2", args[1]))
    if len(args) == 2 and _agree(mode, args, rank):
        return _product(mode, *args)
    return NotImplemented


@RULES.register("mv")
def matrix_and_vector(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A dtype check, which the meta kernel lacks."""
    require_one_dtype(("matrix", args[0]), ("vector", args[1]))
    return NotImplemented


@RULES.register("addmm")
def addmm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``bias`` is a row or a full matrix here; other broadcasts go to the meta kernel."""
    bias, a, b = args[:3]
    require_one_dtype(("self", bias), ("mat2", b))
    require_one_dtype(("mat1", a), ("mat2", b))
    if is_fake(bias) and bias.dim() > 2:  # the meta kernel broadcasts it
        raise RuntimeError(f"addmm: self has {bias.dim()} dimensions, more than the product's 2")
    if len(args) != 3 or not _agree(mode, args, 1, 2) or not a.dim() == b.dim() == 2:
        return NotImplemented
    sizes = zip(reversed(bias.shape), (b.shape[1], a.shape[0]))
    if not all(require_equal(mode.shape_env, x, y) for x, y in sizes):
        return NotImplemented
    return _product(mode, a, b)


@RULES.register("_grouped_mm")
def grouped_mm(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Valid operands only; others go to the meta kernel for its errors.

    That kernel takes only bfloat16, and without CUDA it does not pad rows.
    """
    a, b, ends, bias, dtype = bind(func, args, kwargs).values()
    if bias is not None or not _agree(mode, (a, b), 2, 3):
        return NotImplemented
    if a.dtype not in GROUPED_DTYPES or dtype not in (None, a.dtype):
        return NotImplemented
    if (ends is None) != (a.dim() == b.dim() == 3):
        return NotImplemented
    if ends is not None and not (is_fake(ends) and ends.dtype is torch.int32 and ends.dim() == 1):
        return NotImplemented
    pairs = [(a.shape[-1], b.shape[-2])]
    pairs += [
        (x.shape[0], b.shape[0] if ends is None else ends.shape[0]) for x in (a, b) if x.dim() == 3
    ]
    if not all(require_equal(mode.shape_env, x, y) for x, y in pairs):
        return NotImplemented
    m, n, whole = a.shape[-2], b.shape[-1], 16 // a.dtype.itemsize
    row = (n + whole - 1) // whole * whole
    if a.dim() != b.dim():
        return new_empty(mode, a, (m, n), (row, 1))
    groups = a.shape[0] if ends is None else ends.shape[0]
    return new_empty(mode, a, (groups, m, n), (m * row, row, 1))
