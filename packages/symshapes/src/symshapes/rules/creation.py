"""Factory functions, copies between devices, and constants."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from types import NoneType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .format import is_dense, is_fake
from .registry import RULES
from .written import stamp

aten = torch.ops.aten

_MAX_CONSTANT = 8  # elements of a constant whose value is tracked
_MAX_POSITIONS = 1024  # elements of integers counted by arange, and of what is computed from them
COUNTING = {aten.arange.default, aten.arange.start, aten.arange.start_step}
EXACT = {
    *(aten._to_copy.default, aten.cat.default, aten.stack.default, aten.neg.default),
    *(aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar, aten.mul.Tensor),
}
"""Ops on floats that hold integers, whose result no rounding changes if it is one as well."""
JOINING = {aten.cat.default, aten.stack.default, aten.index.Tensor}
_UNSET = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
_PLAIN = (str, int, float, NoneType, torch.dtype, torch.device, torch.layout)
_INT64 = torch.iinfo(torch.int64)
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    aten.neg.default: operator.neg,
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), operator.add),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), operator.sub),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b: b - a),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), operator.mul),
}


@cache
def is_factory(func: Any) -> bool:
    """Whether an op takes a ``device`` for a new tensor."""
    schema = getattr(func, "_schema", None)
    return (
        schema is not None
        and func.namespace == "aten"
        and any(a.name == "device" for a in schema.arguments)
    )


@RULES.register("lift_fresh lift")
def lift(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A real constant becomes a fake; a small one keeps its value."""
    (t,) = args
    if getattr(t, "fake_mode", None) is not None:
        return t
    fake = mode.from_real(t)
    if t.numel() <= _MAX_CONSTANT and t.device.type != "meta":
        fake.remember(t.cpu())
    return fake


@RULES.register("_to_copy")
def to_copy(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A new tensor on the wanted device; where only that is given, the meta kernel returns its
    operand.
    """
    (x,) = args
    if not is_fake(x):
        return NotImplemented
    out, device = mode.run_meta(func, args, kwargs), kwargs.get("device")
    device = x.fake_device if device is None else torch.device(device)
    if out is not x and out.fake_device == device:
        return out
    if out is x and not is_dense(mode, x):
        out = mode.run_meta(aten.empty_like.default, args, {})
    return mode.empty(out.shape, out.stride(), dtype=out.dtype, device=device)


@RULES.register("full scalar_tensor")
def filled(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A tensor filled with one symbolic size keeps it."""
    out = mode.run_meta(func, args, kwargs)
    _remember_number(out, args[-1])
    return out


def _remember_number(out: Any, number: Any) -> None:
    if type(number) is torch.SymInt and out.dim() == 0 and out.dtype is torch.int64:
        low, high = number.node.shape_env.bounds(number.node.expr)
        if _INT64.min <= low and high <= _INT64.max:
            out.numbers["item"] = stamp(out), number


def _remember_arithmetic(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
    """Arithmetic on tensors of symbolic sizes."""
    function = _ARITHMETIC.get(func)
    if function is None or kwargs:
        return
    numbers = [arg.known_number if is_fake(arg) else arg for arg in args]
    if all(type(number) in (int, torch.SymInt) for number in numbers):
        _remember_number(out, function(*numbers))


def remember_result(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
    """A small result of known values is known as well: of pointwise arithmetic, and of any
    deterministic ATen op if it holds integers.
    """
    _remember_arithmetic(func, args, kwargs, out)
    if func.namespace != "aten" or func._schema.is_mutable:
        return
    if not is_fake(out) or out._has_symbolic_sizes_strides:
        return
    if torch.Tag.nondeterministic_seeded in func.tags or out.numel() > _most_known(func, out):
        return
    values = pytree.tree_map_only(torch.Tensor, _known_value, args)
    leaves = pytree.tree_leaves(values)
    if not all(isinstance(value, (bool, int, float, torch.Tensor)) for value in leaves):
        return
    of_numbers = func in COUNTING or torch.Tag.pointwise in func.tags
    if not (of_numbers or any(isinstance(value, torch.Tensor) for value in leaves)):
        return
    if not all(isinstance(value, _PLAIN) for value in kwargs.values()):
        return
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
        value = func(*values, **kwargs)
        if func in EXACT and type(kwargs.get("alpha", 1)) is not int:
            return
        if _is_device_independent(func, value, out.fake_device):
            out.remember(value)


def _known_value(value: Any) -> torch.Tensor | None:
    return value.known_value if is_fake(value) else None


def _most_known(func: Any, out: Any) -> int:
    """The most elements to track."""
    if out.fake_device.type == "meta":
        return 0
    if not (out.is_floating_point() or out.is_complex()):
        return 0 if func._schema.name.partition("::")[2] in _UNSET else _MAX_POSITIONS
    if func in EXACT:
        return _MAX_POSITIONS
    return _MAX_CONSTANT if torch.Tag.pointwise in func.tags else 0


def _is_device_independent(func: Any, value: torch.Tensor, device: torch.device) -> bool:
    """Whether each device computes this: all do on integers, also on those that a float holds."""
    if not value.is_floating_point():
        return not value.is_complex() or device.type == "cpu"
    if device.type == "cpu" and value.numel() <= _MAX_CONSTANT:
        return True
    # below this bound every integer has a float of its own, and no sum that was rounded falls below
    exact = value.abs().lt(2 / torch.finfo(value.dtype).eps) & (value == value.round())
    return func in EXACT and bool(exact.all())


@RULES.register("clone empty_like flip put zeros_like ones_like full_like rand_like randn_like")
def like(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A dense operand keeps its strides; other layouts go to the meta kernel."""
    x = args[0]
    format = kwargs.get("memory_format")
    if not is_fake(x) or x.fake_mode is not mode or any(type(s) is int and s == 0 for s in x.shape):
        return NotImplemented
    if format is torch.contiguous_format:
        strides = None
    elif format in (None, torch.preserve_format) and is_dense(mode, x):
        strides = x.stride()
    else:
        return NotImplemented
    device = kwargs.get("device")
    device = x.fake_device if device is None else torch.device(device)
    return mode.empty(x.shape, strides, dtype=kwargs.get("dtype") or x.dtype, device=device)


@RULES.register("_efficientzerotensor")
def zeros(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """As ``zeros``: a ZeroTensor's kernels would run before the mode."""
    return mode.run_op(aten.zeros.default, args, kwargs)
