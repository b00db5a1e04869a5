"""Number arguments that eager refuses because the result's dtype cannot hold them.

Fakes must refuse them too: in compiled code a constant would wrap silently.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .registry import op_of

CHECKED: dict[Any, tuple[tuple[int, str], ...]] = {}  # (index, name) of number arguments
NAMES = {
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "int8": "int8_t", "int16": "int16_t", "int32": "int", "int64": "int64_t",
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double",
}  # fmt: skip


def _check(argument_names: str, ops: str) -> None:
    wanted = argument_names.split()
    for op in map(op_of, ops.split()):
        arguments = enumerate(op._schema.arguments)
        CHECKED[op] = tuple((index, a.name) for index, a in arguments if a.name in wanted)


_check("fill_value", "full full_like new_full fill_diagonal_")
_check(
    "value",
    "fill.Scalar fill_.Scalar masked_fill.Scalar masked_fill_.Scalar index_fill.int_Scalar "
    "index_fill_.int_Scalar scatter.value scatter_.value scatter.value_reduce "
    "scatter_.value_reduce constant_pad_nd addcmul addcmul_ addcdiv addcdiv_",
)
_check("value threshold", "threshold threshold_")
_check("min max", "clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_")
_check("min_val max_val", "hardtanh hardtanh_")
_check("start end", "linspace")
_check("exponent", "pow.Tensor_Scalar pow_.Scalar")
_check(
    "alpha",
    "add.Tensor add_.Tensor sub.Tensor sub_.Tensor add.Scalar sub.Scalar rsub.Tensor rsub.Scalar",
)


def check_numbers(func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
    """Raises RuntimeError, as eager does, for a number that the result's dtype does not hold.

    A symbolic number gets a guard that it fits.
    """
    for index, name in CHECKED[func]:
        number = args[index] if index < len(args) else kwargs.get(name)
        if name == "alpha" and isinstance(number, bool) and result.dtype is not torch.bool:
            raise RuntimeError("Boolean alpha only supported for Boolean results.")
        if isinstance(number, (int, float, torch.SymInt, torch.SymFloat)) and _overflows(
            number, result.dtype
        ):
            raise RuntimeError(
                f"value cannot be converted to type {NAMES[str(result.dtype)[6:]]} without overflow"
            )


def _overflows(number: Any, dtype: torch.dtype) -> bool:
    """Whether eager's conversion fails; negative integers wrap, inf and NaN need a float dtype."""
    if str(dtype)[6:] not in NAMES or (
        isinstance(number, torch.SymFloat) and not number.node.has_hint()
    ):
        return False  # data-dependent: only eager can check
    if dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        return _holds(number > limit) != _holds(number == math.inf) or _holds(
            number < -limit
        ) != _holds(number == -math.inf)
    info = torch.iinfo(dtype)
    if isinstance(number, (float, torch.SymFloat)):
        return not (_holds(number >= info.min, True) and _holds(number <= info.max, True))
    return _holds(number > info.max) or _holds(number < (info.min or -info.max))


def _holds(condition: Any, unknown: bool = False) -> bool:
    """A comparison, with a guard; ``unknown`` for data-dependent numbers."""
    if isinstance(condition, bool):
        return condition
    node = condition.node
    return node.guard_or_true() if unknown else node.guard_or_false()
