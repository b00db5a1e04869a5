"""Operators on lists of tensors, and fused optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from primops import prims
from primops.decompositions import arithmetic, elementary, reduction, special
from primops.operand import Tensor, full_like, over, round_to, slice_dim, to_dtype, widen
from primops.registry import DecompositionTable, Rule

rules = DecompositionTable()
Tensors = Sequence[Tensor]

UNARY = (
    "abs acos asin atan ceil cos cosh erf exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)


def _each(rule: Callable[..., Tensor], *lists: Any, **options: Any) -> list[Tensor]:
    """``rule`` on corresponding elements, if it covers all; what is no list counts for all."""
    count = len(next(x for x in lists if isinstance(x, (tuple, list))))
    spread = [x if isinstance(x, (tuple, list)) else [x] * count for x in lists]
    results = [rule(*group, **options) for group in zip(*spread)]
    return NotImplemented if any(x is NotImplemented for x in results) else results


def _register(names: str, rule: Rule) -> None:
    rules.register(*names.split())(lambda *lists, **options: _each(rule, *lists, **options))


def _found(table: DecompositionTable, name: str) -> Rule:
    return table._rules[f"aten::{name}"]


for _name in UNARY.split():
    _register(f"_foreach_{_name}", _found(elementary.rules, _name))
_register("_foreach_erfc", _found(special.rules, "erfc"))
_register("_foreach_zero", lambda a: full_like(a, 0))
_register("_foreach_clone", lambda a: a)
_register("_foreach_copy", lambda a, b, non_blocking=False: to_dtype(b, a.dtype))


def _power(a: Any, b: Any) -> Tensor:
    if isinstance(b, (int, float)):
        return arithmetic.pow_scalar(a, b)
    return arithmetic.pow_tensor(a, b)


BINARY: dict[str, Rule] = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "div": arithmetic.div,
    "clamp_max": elementary.clamp_max,
    "minimum": elementary.clamp_max,
    "clamp_min": elementary.clamp_min,
    "maximum": elementary.clamp_min,
    "pow": _power,
}
for _name, _rule in BINARY.items():
    _register(f"_foreach_{_name}.List _foreach_{_name}.Scalar _foreach_{_name}.ScalarList", _rule)
    if _name in ("add", "mul", "div"):
        _register(f"_foreach_{_name}.Tensor", _rule)
_register("_foreach_pow.ScalarAndTensor", _power)
_register("_foreach_lerp.Scalar _foreach_lerp.ScalarList", arithmetic.lerp_scalar)
_register("_foreach_lerp.List", arithmetic.lerp_tensor)
_register("_foreach_max", _found(reduction.rules, "max"))
_register(
    "_foreach_norm.Scalar",
    lambda a, ord=2, dtype=None: reduction.linalg_vector_norm(a, ord, dtype=dtype),
)


def _ternary(name: str, rule: Callable[..., Tensor]) -> None:
    _register(
        f"{name}.Scalar {name}.ScalarList", lambda a, b, c, value=1: rule(a, b, c, value=value)
    )

    @rules.register(f"{name}.Tensor")
    def by_tensor(self: Tensors, left: Tensors, right: Tensors, scalars: Tensor) -> list[Tensor]:
        parts = [slice_dim(scalars, 0, i, i + 1) for i in range(len(self))]
        values = [prims.reshape(v, shape=()) for v in parts]
        return _each(rule, self, _each(arithmetic.mul, left, values), right)


_ternary("_foreach_addcmul", arithmetic.addcmul)
_ternary("_foreach_addcdiv", arithmetic.addcdiv)


@rules.register("_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients without the scale of their loss, and whether one of them is not finite."""
    scaled, found = [], found_inf
    for gradient in self:
        wide = widen(gradient)
        factor = over(to_dtype(inv_scale, wide.dtype), wide.shape)
        scaled.append(round_to(prims.mul(wide, factor), gradient.dtype))
        is_finite = prims.lt(prims.abs(wide), math.inf)
        is_bad = prims.any(prims.bitwise_not(is_finite), dims=tuple(range(len(wide.shape))))
        found = prims.where(over(is_bad, found.shape), 1.0, found)
    return scaled, found


# Optimizers
# --------------------------------------------------------------------------------------------------
# The functional variants return each list after the step, in the order of the arguments.


def _optimize(
    step: Callable[..., list[Tensor]], grad_scale: Tensor | None, found_inf: Tensor | None,
    parameters: Tensors, grads: Tensors, *states: Tensors,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    """Parameters, gradients and states after ``step(index, parameter, gradient, *states)``, which
    sees float32 for half dtypes. An empty list of states stays empty.
    """
    scaled = [widen(g) for g in grads]
    if grad_scale is not None:
        scaled = [prims.div(g, over(to_dtype(grad_scale, g.dtype), g.shape)) for g in scaled]
    old = [parameters, *(state for state in states if state)]
    new: list[list[Tensor]] = [[] for _ in old]
    for i, (gradient, values) in enumerate(zip(scaled, zip(*old))):
        parameter, *rest = map(widen, values)
        for column, result, value in zip(new, step(i, parameter, gradient, *rest), values):
            column.append(round_to(result, value.dtype))
    if found_inf is not None:
        flag = prims.eq(widen(found_inf), 1)
        new = [
            [prims.where(over(flag, b.shape), b, a) for a, b in zip(*pair)]
            for pair in zip(new, old)
        ]
    updated, gradients = iter(new), [round_to(g, x.dtype) for g, x in zip(scaled, grads)]
    return next(updated), gradients, *(next(updated) if state else [] for state in states)


def _decayed(grad: Tensor, parameter: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    grad = prims.neg(grad) if maximize else grad
    return prims.add(grad, prims.mul(parameter, weight_decay)) if weight_decay else grad


def _rate(value: Any, like: Tensor) -> Any:
    """A learning rate as an operand: a number, or a tensor of one element spread out."""
    return over(to_dtype(value, like.dtype), like.shape) if hasattr(value, "dtype") else value


def _adam(decoupled: bool) -> Rule:
    def rule(
        self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors, state_steps: Tensors, *, lr: Any, beta1: float, beta2: float,
        weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
        grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        def step(i: int, p: Tensor, g: Tensor, m: Tensor, v: Tensor, *most: Tensor) -> list[Tensor]:
            rate = _rate(lr, p)
            g = _decayed(g, p, 0 if decoupled else weight_decay, maximize)
            if weight_decay and decoupled:
                p = prims.sub(p, prims.mul(p, arithmetic.times(rate, weight_decay)))
            m = prims.add(m, prims.mul(prims.sub(g, m), 1 - beta1))
            v = prims.add(prims.mul(v, beta2), prims.mul(prims.mul(g, g), 1 - beta2))
            largest = prims.maximum(most[0], v) if most else v
            count = to_dtype(state_steps[i], p.dtype)
            first, second = (over(_correction(count, beta), p.shape) for beta in (beta1, beta2))
            denominator = prims.add(prims.div(prims.sqrt(largest), prims.sqrt(second)), eps)
            size = prims.div(prims.mul(m, rate), first)
            return [prims.sub(p, prims.div(size, denominator)), m, v, largest]

        maxima = max_exp_avg_sqs if amsgrad else []
        lists = (self, grads, exp_avgs, exp_avg_sqs, maxima)
        return _optimize(step, grad_scale, found_inf, *lists)

    return rule


def _correction(step: Tensor, beta: float) -> Tensor:
    """``1 - beta ** step``."""
    if not beta:
        return prims.add(prims.mul(step, 0), 1)
    return prims.sub(1, prims.exp(prims.mul(step, math.log(beta))))


rules.register("_fused_adam", "_fused_adam.tensor_lr")(_adam(False))
rules.register("_fused_adamw", "_fused_adamw.tensor_lr")(_adam(True))


@rules.register("_fused_sgd", "_fused_sgd.tensor_lr")
def fused_sgd(
    self: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float,
    momentum: float, lr: Any, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    """Stochastic gradient descent with momentum."""

    def step(i: int, parameter: Tensor, g: Tensor, *buffers: Tensor) -> list[Tensor]:
        g, moved = _decayed(g, parameter, weight_decay, maximize), []
        if buffers:
            buffer = prims.add(prims.mul(buffers[0], momentum), prims.mul(g, 1 - dampening))
            moved = [g if is_first_step else buffer]
            g = prims.add(g, prims.mul(moved[0], momentum)) if nesterov else moved[0]
        return [prims.sub(parameter, prims.mul(g, _rate(lr, parameter))), *moved]

    lists = (self, grads, momentum_buffer_list if momentum else [])
    *results, buffers = _optimize(step, grad_scale, found_inf, *lists)
    return *results, buffers if momentum else list(momentum_buffer_list)


@rules.register("_fused_adagrad")
def fused_adagrad(
    self: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *, lr: float,
    lr_decay: float, weight_decay: float, eps: float, maximize: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    """Adagrad."""

    def step(i: int, parameter: Tensor, g: Tensor, summed: Tensor) -> list[Tensor]:
        g = _decayed(g, parameter, weight_decay, maximize)
        past = prims.sub(to_dtype(state_steps[i], parameter.dtype), 1)
        rate = prims.div(lr, prims.add(prims.mul(past, lr_decay), 1))
        summed = prims.add(summed, prims.mul(g, g))
        move = prims.div(g, prims.add(prims.sqrt(summed), eps))
        return [prims.sub(parameter, prims.mul(move, over(rate, parameter.shape))), summed]

    results = _optimize(step, grad_scale, found_inf, self, grads, state_sums)
    return *results, list(state_steps)
