"""Sizes and memory formats of fakes, shared by the rules."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from symshapes import layout
from symshapes.layout import dense_strides, is_channels_last_strides, layout_order


def expr(x: Any) -> Any:
    """The expression of a size, without the wrappers' checks."""
    return sympy.Integer(x) if type(x) is int else x.node.expr


def _exprs(x: Any) -> tuple[list[Any], list[Any]]:
    """The expressions of a tensor's sizes and strides."""
    return [expr(s) for s in x.shape], [expr(s) for s in x.stride()]


def known_at_least(env: Any, size: Any, least: int) -> bool:
    """Whether a size is at least ``least`` for all admissible sizes; never records a guard."""
    if type(size) is int:
        return size >= least
    return (
        env.bounds(expr(size))[0] >= least
        or env.statically_known(sympy.Ge(expr(size), least)) is True
    )


def same_size(x: Any, y: Any) -> bool:
    """Whether two sizes are structurally equal."""
    if type(x) is int or type(y) is int:
        return type(x) is type(y) and x == y
    return x.node._expr == y.node._expr or x.node.expr == y.node.expr


def same_sizes(a: Any, b: Any) -> bool:
    """Whether two lists of sizes or strides are structurally equal."""
    return len(a) == len(b) and all(map(same_size, a, b))


def is_one(env: Any, size: Any) -> bool:
    """Whether a size is one, by the example call if open; False for unbacked sizes."""
    return size == 1 if type(size) is int else env.known(sympy.Eq(expr(size), 1))


def require_equal(env: Any, x: Any, y: Any) -> bool:
    """Whether two sizes are equal, by the example call if open; assumed if unbacked."""
    if same_size(x, y):
        return True
    if type(x) is int and type(y) is int:
        return False
    return assume(env, sympy.Eq(expr(x), expr(y)))


def assume(env: Any, condition: Any) -> bool:
    """Whether a condition holds, by the example call if open; a deferred assert if unbacked."""
    known = env.statically_known(condition)
    return env.expect_true(env.wrap(condition, bool).node) if known is None else known


def require_one_dtype(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    """Raises RuntimeError for named operands of two dtypes, which some meta kernels accept.

    A graph's operators are assumed to succeed, so what eager refuses must fail here.
    """
    (name, a), (other_name, b) = one, other
    if (
        is_fake(a)
        and is_fake(b)
        and a.dtype is not b.dtype
        and "meta" not in (a.fake_device.type, b.fake_device.type)
    ):
        raise RuntimeError(
            f"{name} and {other_name} must have the same dtype, but got {a.dtype} and {b.dtype}"
        )


def require_parameters_of(x: Any, *parameters: Any) -> None:
    """Raises RuntimeError for CPU normalisation parameters unlike ``x``; half takes float32."""
    if is_fake(x) and x.fake_device.type == "cpu":
        for parameter in parameters:
            if (
                x.dtype.itemsize != 2
                or not is_fake(parameter)
                or parameter.dtype is not torch.float32
            ):
                require_one_dtype(("input", x), ("parameter", parameter))


def has_channels_last_strides(env: Any, x: Any) -> bool:
    """Whether eager would suggest a channels-last format for a tensor like ``x`` (rank 4 or 5)."""
    if x.dim() not in (4, 5):
        return False
    strides = x.stride()
    if type(strides[1]) is int and type(strides[-1]) is int and strides[1] > strides[-1]:
        return False
    return is_channels_last_strides(env, *_exprs(x))


def format_strides(sizes: Any, channels_last: bool) -> list[Any]:
    """Dense strides in default or channels-last order; an empty dim counts as one."""
    sizes = [1 if type(s) is int and s == 0 else s for s in sizes]
    return dense_strides(sizes, layout_order(len(sizes), channels_last))


def new_empty(
    mode: Any, x: Any, sizes: Any, strides: Any = None, dtype: torch.dtype | None = None
) -> Any:
    """A new fake on the device of ``x``, of its dtype unless one is given."""
    return mode.empty(sizes, strides, dtype=dtype or x.dtype, device=x.fake_device)


def in_format(mode: Any, x: Any, channels_last: bool) -> Any:
    """A new fake like ``x``, channels-last or contiguous."""
    return restrided(mode, x, format_strides(x.shape, channels_last))


def restrided(mode: Any, x: Any, strides: Any) -> Any:
    """A new fake like ``x`` with other strides; ``x`` itself when they are the same."""
    if same_sizes(x.stride(), strides):
        return x
    return new_empty(mode, x, x.shape, strides)


def like_operand(
    mode: Any, result: Any, x: Any, by: Any = torch.ops.aten.empty_like.default
) -> Any:
    """``result`` with the strides of ``by(x)``: ``empty_like`` or ``clone``.

    Unlike meta kernels, these keep the strides of size-1 dims.
    """
    if not (is_fake(x) and is_fake(result) and same_sizes(result.shape, x.shape)):
        return result
    like = x if is_dense(mode, x) else mode.run_meta(by, (x,), {})
    return restrided(mode, result, like.stride())


def is_contiguous(mode: Any, x: Any) -> bool:
    """Whether ``x`` is contiguous; False when that depends on unbacked sizes."""
    env = mode.shape_env
    if not (env.unbacked and x._has_symbolic_sizes_strides):
        return x.is_contiguous()
    return layout.is_contiguous(env, *_exprs(x))


def is_dense(mode: Any, t: Any) -> bool:
    """Whether ``t`` has no gaps or overlaps; False when that depends on unbacked sizes."""
    if t._has_symbolic_sizes_strides:
        return layout.is_dense(mode.shape_env, *_exprs(t))
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_fake(x: Any) -> bool:
    """Whether ``x`` is a FakeTensor."""
    return isinstance(x, torch.Tensor) and hasattr(x, "fake_mode")
