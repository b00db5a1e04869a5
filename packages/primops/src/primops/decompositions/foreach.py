"""Operators on lists of tensors, and fused optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from primops import prims
from primops.decompositions import arithmetic, elementary, reduction, special
from primops.operand import Tensor, round_to, to_dtype, widen
from primops.registry import DecompositionTable, Rule

rules = DecompositionTable()
Tensors = Sequence[Tensor]

UNARY = (
    "abs acos asin atan ceil cos cosh erf exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid "
    "sign sin sinh sqrt tan tanh trunc"
)


def _each(rule: Callable[..., Tensor], *lists: Any, **options: Any) -> list[Tensor]:
    """``rule`` on corresponding elements; what is no list counts for all."""
    count = len(next(x for x in lists if isinstance(x, (tuple, list))))
    spread = [x if isinstance(x, (tuple, list)) else [x] * count for x in lists]
    return [rule(*group, **options) for group in zip(*spread)]


def _register(names: str, rule: Rule) -> None:
    rules.register(*names.split())(lambda *lists, **options: _each(rule, *lists, **options))


def _found(table: DecompositionTable, name: str) -> Rule:
    return table._rules[f"aten::{name}"]


for _name in UNARY.split():
    _register(f"_foreach_{_name}", _found(elementary.rules, _name))
_register("_foreach_erfc", _found(special.rules, "erfc"))
_register(
    "_foreach_zero",
    lambda a: prims.full(shape=tuple(a.shape), value=0, dtype=a.dtype, device=a.device),
)
_register("_foreach_clone", lambda a: a)
_register("_foreach_copy", lambda a, b, non_blocking=False: to_dtype(b, a.dtype))
for _name, _rule in (
    ("add", arithmetic.add),
    ("sub", arithmetic.sub),
    ("mul", arithmetic.mul),
    ("div", arithmetic.div),
):
    _register(f"_foreach_{_name}.List _foreach_{_name}.Scalar _foreach_{_name}.ScalarList", _rule)
    if _name != "sub":
        _register(f"_foreach_{_name}.Tensor", _rule)
_variants = "_foreach_{0}.List _foreach_{0}.Scalar _foreach_{0}.ScalarList"
_register(f"{_variants.format('clamp_max')} {_variants.format('minimum')}", elementary.clamp_max)
_register(f"{_variants.format('clamp_min')} {_variants.format('maximum')}", elementary.clamp_min)


def _power(a: Any, b: Any) -> Tensor:
    if isinstance(b, (int, float)):
        return arithmetic.pow_scalar(a, b)
    return arithmetic.pow_tensor(a, b)


_register(
    "_foreach_pow.List _foreach_pow.Scalar _foreach_pow.ScalarList _foreach_pow.ScalarAndTensor",
    _power,
)
_register("_foreach_lerp.Scalar _foreach_lerp.ScalarList", arithmetic.lerp_scalar)
_register("_foreach_lerp.List", arithmetic.lerp_tensor)
_register("_foreach_max", _found(reduction.rules, "max"))


def _ternary(name: str, rule: Callable[..., Tensor]) -> None:
    @rules.register(f"{name}.Scalar", f"{name}.ScalarList")
    def by_number(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, value: Any = 1
    ) -> list[Tensor]:
        values = value if isinstance(value, (tuple, list)) else [value] * len(self)
        return [rule(a, b, c, value=v) for a, b, c, v in zip(self, tensor1, tensor2, values)]

    @rules.register(f"{name}.Tensor")
    def by_tensor(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor
    ) -> list[Tensor]:
        parts = [prims.slice(scalars, dim=0, start=i, stop=i + 1, step=1) for i in range(len(self))]
        values = [prims.reshape(v, shape=()) for v in parts]
        return [
            rule(a, arithmetic.mul(b, v), c) for a, b, c, v in zip(self, tensor1, tensor2, values)
        ]


_ternary("_foreach_addcmul", arithmetic.addcmul)
_ternary("_foreach_addcdiv", arithmetic.addcdiv)


@rules.register("_foreach_norm.Scalar")
def foreach_norm(self: Tensors, ord: Any = 2, dtype: Any = None) -> list[Tensor]:
    """A norm per tensor."""
    return [reduction.linalg_vector_norm(a, ord, dtype=dtype) for a in self]


@rules.register("_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients without the scale of their loss, and whether one of them is not finite."""
    scaled, found = [], found_inf
    for gradient in self:
        wide = widen(gradient)
        factor = prims.reshape(to_dtype(inv_scale, wide.dtype), shape=())
        scaled.append(
            round_to(
                prims.mul(wide, prims.broadcast_in_dim(factor, shape=wide.shape, dims=())),
                gradient.dtype,
            )
        )
        is_finite = prims.lt(prims.abs(wide), math.inf)
        is_bad = prims.any(prims.bitwise_not(is_finite), dims=tuple(range(len(wide.shape))))
        found = prims.where(prims.broadcast_in_dim(is_bad, shape=found.shape, dims=()), 1.0, found)
    return scaled, found


# Optimizers
# --------------------------------------------------------------------------------------------------
# The functional variants return each list after the step, in the order of the arguments.


def _scaled_grads(grads: Tensors, grad_scale: Tensor | None) -> list[Tensor]:
    wide = [widen(g) for g in grads]
    if grad_scale is None:
        return wide
    return [
        prims.div(g, prims.broadcast_in_dim(to_dtype(grad_scale, g.dtype), shape=g.shape, dims=()))
        for g in wide
    ]


def _unless_found_inf(found_inf: Tensor | None, new: Tensors, old: Tensors) -> list[Tensor]:
    if found_inf is None:
        return list(new)
    flag = prims.eq(widen(found_inf), 1)
    return [
        prims.where(
            prims.broadcast_in_dim(prims.reshape(flag, shape=()), shape=b.shape, dims=()), b, a
        )
        for a, b in zip(new, old)
    ]


def _alike(scaled: Tensors, grads: Tensors) -> list[Tensor]:
    return [round_to(g, old.dtype) for g, old in zip(scaled, grads)]


def _decayed(grad: Tensor, parameter: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    grad = prims.neg(grad) if maximize else grad
    return prims.add(grad, prims.mul(parameter, weight_decay)) if weight_decay else grad


def _number(value: Any, like: Tensor) -> Any:
    """A learning rate as an operand: a number, or a scalar tensor spread out."""
    if not hasattr(value, "dtype"):
        return value
    return prims.broadcast_in_dim(
        prims.reshape(to_dtype(value, like.dtype), shape=()), shape=like.shape, dims=()
    )


def _adam(decoupled: bool) -> Rule:
    def rule(
        self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors, state_steps: Tensors,
        *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        scaled = _scaled_grads(grads, grad_scale)
        news: list[list[Tensor]] = [[], [], [], []]
        for i, (p, g) in enumerate(zip(self, scaled)):
            parameter, m, v, step = (
                widen(p),
                widen(exp_avgs[i]),
                widen(exp_avg_sqs[i]),
                state_steps[i],
            )
            rate = _number(lr, parameter)
            g = prims.neg(g) if maximize else g
            if weight_decay and decoupled:
                parameter = prims.sub(
                    parameter, prims.mul(parameter, _rate_times(rate, weight_decay))
                )
            elif weight_decay:
                g = prims.add(g, prims.mul(parameter, weight_decay))
            m = prims.add(m, prims.mul(prims.sub(g, m), 1 - beta1))
            v = prims.add(prims.mul(v, beta2), prims.mul(prims.mul(g, g), 1 - beta2))
            largest = prims.maximum(widen(max_exp_avg_sqs[i]), v) if amsgrad else v
            corrections = []
            for beta in (beta1, beta2):
                power = (
                    prims.exp(prims.mul(to_dtype(step, parameter.dtype), math.log(beta)))
                    if beta
                    else to_dtype(step, parameter.dtype)
                )
                left = prims.sub(1, power) if beta else prims.add(prims.mul(power, 0), 1)
                corrections.append(
                    prims.broadcast_in_dim(prims.reshape(left, shape=()), shape=p.shape, dims=())
                )
            denominator = prims.add(prims.div(prims.sqrt(largest), prims.sqrt(corrections[1])), eps)
            size = prims.div(prims.mul(m, rate), corrections[0])
            parameter = prims.sub(parameter, prims.div(size, denominator))
            olds = (p, exp_avgs[i], exp_avg_sqs[i], max_exp_avg_sqs[i] if amsgrad else None)
            for new, value, old in zip(news, (parameter, m, v, largest), olds):
                if old is not None:
                    new.append(round_to(value, old.dtype))
        kept = [
            _unless_found_inf(found_inf, new, old)
            for new, old in zip(news, (self, exp_avgs, exp_avg_sqs, max_exp_avg_sqs))
        ]
        return kept[0], _alike(scaled, grads), kept[1], kept[2], kept[3]

    return rule


def _rate_times(a: Any, factor: float) -> Any:
    """A learning rate times a number."""
    return prims.mul(a, factor) if hasattr(a, "dtype") else a * factor


rules.register("_fused_adam", "_fused_adam.tensor_lr")(_adam(False))
rules.register("_fused_adamw", "_fused_adamw.tensor_lr")(_adam(True))


@rules.register("_fused_sgd", "_fused_sgd.tensor_lr")
def fused_sgd(
    self: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float,
    momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    """Stochastic gradient descent with momentum."""
    scaled = _scaled_grads(grads, grad_scale)
    parameters, buffers = [], []
    for i, (p, g) in enumerate(zip(self, scaled)):
        wide = widen(p)
        g = _decayed(g, wide, weight_decay, maximize)
        if momentum:
            kept = widen(momentum_buffer_list[i])
            kept = (
                g
                if is_first_step
                else prims.add(prims.mul(kept, momentum), prims.mul(g, 1 - dampening))
            )
            buffers.append(round_to(kept, momentum_buffer_list[i].dtype))
            g = prims.add(g, prims.mul(kept, momentum)) if nesterov else kept
        parameters.append(round_to(prims.sub(wide, prims.mul(g, _number(lr, wide))), p.dtype))
    buffers = (
        _unless_found_inf(found_inf, buffers, momentum_buffer_list)
        if momentum
        else list(momentum_buffer_list)
    )
    return _unless_found_inf(found_inf, parameters, self), _alike(scaled, grads), buffers


@rules.register("_fused_adagrad")
def fused_adagrad(
    self: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *, lr: float,
    lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:  # fmt: skip
    """Adagrad."""
    scaled = _scaled_grads(grads, grad_scale)
    parameters, sums = [], []
    for i, (p, g) in enumerate(zip(self, scaled)):
        wide = widen(p)
        g = _decayed(g, wide, weight_decay, maximize)
        step = prims.reshape(to_dtype(state_steps[i], wide.dtype), shape=())
        rate = prims.div(lr, prims.add(prims.mul(prims.sub(step, 1), lr_decay), 1))
        summed = prims.add(widen(state_sums[i]), prims.mul(g, g))
        move = prims.div(g, prims.add(prims.sqrt(summed), eps))
        rate = prims.broadcast_in_dim(rate, shape=wide.shape, dims=())
        parameters.append(round_to(prims.sub(wide, prims.mul(move, rate)), p.dtype))
        sums.append(round_to(summed, state_sums[i].dtype))
    return (
        _unless_found_inf(found_inf, parameters, self),
        _alike(scaled, grads),
        _unless_found_inf(found_inf, sums, state_sums),
        list(state_steps),
    )
