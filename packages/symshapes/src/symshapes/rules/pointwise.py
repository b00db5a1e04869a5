"""Elementwise ops: broadcast sizes, promoted dtype, and the tensor iterator's strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from symshapes.torch_versions import BOOL_SUBTRACTION_ERROR

from .broadcast import broadcast_sizes, result_strides
from .format import has_channels_last_strides, in_format, is_fake, like_operand, same_sizes
from .promotion import result_dtype
from .registry import RULES, Rule

aten = torch.ops.aten

Dtype = Callable[[Sequence[Any]], torch.dtype | None]


def _float(operands: Sequence[Any]) -> torch.dtype:
    dtype = result_dtype(operands)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _bool(operands: Sequence[Any]) -> torch.dtype:
    return torch.bool


def _only_float(operands: Sequence[Any]) -> torch.dtype | None:
    dtype = result_dtype(operands)
    return dtype if dtype.is_floating_point else None


def _only_numeric(operands: Sequence[Any]) -> torch.dtype | None:
    dtype = result_dtype(operands)
    return None if dtype is torch.bool else dtype


def _only_integer(operands: Sequence[Any]) -> torch.dtype | None:
    dtype = _only_numeric(operands)
    return None if dtype is None or dtype.is_floating_point else dtype


def _agreeing(operands: Sequence[Any]) -> torch.dtype | None:
    """Backward formulas take operands of one floating dtype."""
    first = operands[0].dtype
    same = all(x.dtype is first for x in operands if isinstance(x, torch.Tensor))
    return first if same and first.is_floating_point else None


def _chosen(operands: Sequence[Any]) -> torch.dtype | None:
    """The common dtype of both choices."""
    condition, *choices = operands
    return result_dtype(choices) if condition.dtype is torch.bool else None


def elementwise(
    dtype_of: Dtype, count: int, *, wraps: bool = False, last_first: bool = False
) -> Rule:
    """A rule for ops whose first ``count`` arguments are operands, the rest parameters.

    ``wraps``: whether ATen wraps a number operand in a tensor. ``last_first``: whether the last
    operand's strides count first.
    """

    def rule(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        operands = args[:count]
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if (
            len(args) < count
            or not tensors
            or any(not is_fake(t) or t.dtype.is_complex for t in tensors)
        ):
            return NotImplemented
        dtype = dtype_of(operands)
        if dtype is None or dtype.is_complex:
            return NotImplemented
        device = mode.common_device(func, args, {})
        if len(tensors) == 1 or all(t is tensors[0] for t in tensors):
            sizes = tensors[0].shape
        else:
            sizes = broadcast_sizes(mode.shape_env, tensors)
        ordered = tensors[::-1] if last_first else tensors
        strides = result_strides(mode, ordered, sizes, wraps and len(tensors) < count)
        return mode.empty(sizes, strides, dtype=dtype, device=device)

    return rule


def in_place(count: int) -> Rule:
    """A rule for in-place ops: ``self`` after checking that the operands fit into it."""

    def rule(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        target = args[0]
        tensors = [x for x in args[:count] if isinstance(x, torch.Tensor)]
        if any(not is_fake(t) or t.dtype.is_complex for t in tensors):
            return NotImplemented
        if not torch.can_cast(result_dtype(args[:count]), target.dtype):
            return NotImplemented
        mode.common_device(func, args, {})
        others = [t for t in tensors if t is not target and not same_sizes(t.shape, target.shape)]
        if not others:
            return target
        sizes = broadcast_sizes(mode.shape_env, [target, *others])
        return target if same_sizes(sizes, target.shape) else NotImplemented

    return rule


def subtraction(rule: Rule) -> Rule:
    """A rule for subtraction: kernels refuse any bool, meta kernels only two bool tensors."""

    def checked(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        is_meta = any(is_fake(x) and x.fake_device.type == "meta" for x in args[:2])
        if not is_meta and any(
            x.dtype is torch.bool if isinstance(x, torch.Tensor) else type(x) is bool
            for x in args[:2]
        ):
            raise BOOL_SUBTRACTION_ERROR(
                "Subtraction, the `-` operator, with a bool tensor is not supported."
            )
        return rule(mode, func, args, kwargs)

    return checked


def _table(names: str, dtype: Dtype, count: int) -> None:
    for name in names.split():
        wraps = count == 2 and name != "pow.Tensor_Scalar"
        RULES.register(name)(elementwise(dtype, count, wraps=wraps))


_table("abs neg sign square floor ceil round trunc relu", _only_numeric, 1)
_table("bitwise_not", lambda operands: operands[0].dtype, 1)
_FLOAT_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sigmoid erf erfc reciprocal sinc logit"
)
_table(_FLOAT_FUNCTIONS, _float, 1)
_ACTIVATIONS = "silu hardswish hardsigmoid mish gelu elu leaky_relu softplus hardshrink softshrink"
_table(_ACTIVATIONS, _only_float, 1)
_table("logical_not isnan isinf", _bool, 1)
_table("add.Tensor add.Scalar mul.Tensor mul.Scalar maximum minimum", result_dtype, 2)
_table("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", result_dtype, 2)
_table("remainder.Tensor remainder.Scalar fmod.Tensor floor_divide", _only_numeric, 2)
_table("pow.Tensor_Tensor pow.Tensor_Scalar", _only_numeric, 2)
_table("gcd lcm", _only_integer, 2)
_table("div.Tensor div.Scalar atan2 copysign.Tensor xlogy.Tensor special_xlog1py", _float, 2)
_table("logaddexp logaddexp2", _only_float, 2)
for _comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
    _table(f"{_comparison}.Tensor {_comparison}.Scalar", _bool, 2)
_table("logical_and logical_or logical_xor", _bool, 2)
_table("addcmul addcdiv lerp.Scalar", _agreeing, 3)
_table("where.self", _chosen, 3)
_table("heaviside hardshrink_backward softshrink_backward", _agreeing, 2)
_table("hardtanh_backward logit_backward", _agreeing, 2)
RULES.register("threshold_backward")(elementwise(_agreeing, 2, last_first=True))
_table(
    "tanh_backward sigmoid_backward gelu_backward silu_backward hardswish_backward", _agreeing, 2
)
_dropout_backward = elementwise(lambda operands: _agreeing(operands[:1]), 2)


@RULES.register("native_dropout_backward")
def native_dropout_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Pointwise; on CUDA devices in the gradient's memory format."""
    result, grad = _dropout_backward(mode, func, args, kwargs), args[0]
    if result is NotImplemented or grad.fake_device.type != "cuda":
        return result
    return in_format(mode, result, has_channels_last_strides(mode.shape_env, grad))


@RULES.register("mse_loss_backward smooth_l1_loss_backward huber_loss_backward")
def loss_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Always dense, of the operand's dtype. The meta kernels would divide by the number of
    elements, which may be 0, and promote dtypes.
    """
    _, x, target, *_ = args
    if not all(map(is_fake, args[:3])) or not same_sizes(x.shape, target.shape):
        return NotImplemented
    return mode.empty(x.shape, dtype=x.dtype, device=mode.common_device(func, args, {}))


@RULES.register("binary_cross_entropy_backward")
def binary_cross_entropy_backward(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The kernel allocates with ``empty_like`` of the forward's operand."""
    return like_operand(mode, mode.run_meta(func, args, kwargs), args[1])


@RULES.register("pow.Scalar")
def power_of_number(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Always dense, whatever the exponent's strides."""
    result = elementwise(_only_numeric, 2, wraps=True)(mode, func, args, kwargs)
    return result if result is NotImplemented else in_format(mode, result, False)


@RULES.register("hardtanh nan_to_num deg2rad rad2deg _prelu_kernel")
def from_empty_like(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """These kernels allocate with ``empty_like``."""
    return like_operand(mode, mode.run_meta(func, args, kwargs), args[0])


@RULES.register("div.Tensor_mode")
def divide_and_round(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    dtype_of = _float if kwargs.get("rounding_mode") is None else _only_numeric
    return elementwise(dtype_of, 2, wraps=True)(mode, func, args, {})


@RULES.register("clamp clamp_min clamp_max")
def clamp(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    operands = [x for x in (*args, *kwargs.values()) if x is not None]
    if not is_fake(args[0]) or len(operands) < 2:
        return NotImplemented
    return elementwise(_only_numeric, len(operands))(mode, func, tuple(operands), {})


RULES.register("add_.Tensor mul_.Tensor div_.Tensor add_.Scalar mul_.Scalar")(in_place(2))
RULES.register("relu_ sigmoid_ tanh_ exp_ sqrt_ neg_ zero_ silu_")(in_place(1))
RULES.register("addcmul_ addcdiv_")(in_place(3))
RULES.register("sub.Tensor sub.Scalar")(subtraction(elementwise(_only_numeric, 2, wraps=True)))
RULES.register("sub_.Tensor sub_.Scalar")(subtraction(in_place(2)))
RULES.register("rsub.Tensor rsub.Scalar")(
    subtraction(lambda mode, func, args, kwargs: NotImplemented)
)
