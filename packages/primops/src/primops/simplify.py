"""Rewrites of single prim calls that are exact for every value, applied while a graph is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from primops import prims
from primops.meta import TensorMeta
from primops.prim import Prim, Traced, registered
from primops.promotion import HALF_DTYPES, INTEGER_DTYPES, is_number
from primops.shapes import is_one, same_shape, same_size

Rule = Callable[["Call"], "Traced | None"]
_RULES: dict[Prim, list[Rule]] = {}


@dataclass(slots=True)
class Call:
    """A prim call about to be recorded."""

    prim: Prim
    operands: tuple[Any, ...]
    params: dict[str, Any]
    meta: TensorMeta

    def full(self, value: Any) -> Traced:
        """The result, known to be one number everywhere."""
        return prims.full(
            shape=self.meta.shape, value=value, dtype=self.meta.dtype, device=self.meta.device
        )


def simplify(
    prim: Prim, operands: tuple[Any, ...], params: dict[str, Any], meta: TensorMeta
) -> Traced | None:
    """A value equal to the call, or None to record the call as it is."""
    rules = _RULES.get(prim)
    if rules is None:
        return None
    call = Call(prim, operands, params, meta)
    for rule in rules:
        simpler = rule(call)
        if simpler is not None:
            return simpler
    return None


def _on(*targets: Prim) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for prim in targets:
            _RULES.setdefault(prim, []).append(rule)
        return rule

    return register


def constant_of(value: Any) -> Any:
    """The number that a value is everywhere, or None."""
    if is_number(value):
        return value
    return value.params["value"] if value.target is prims.full else None


def _is_plain(value: Any, number: int) -> bool:
    return type(value) in (int, float) and value == number


BINARY = [
    prim
    for prim in registered().values()
    if prim.group in ("elementwise binary", "comparison") and "special" not in prim.tags
]
UNARY = (
    prims.neg, prims.abs, prims.sign, prims.floor, prims.ceil, prims.trunc, prims.round, prims.exp,
    prims.log, prims.sqrt, prims.rsqrt, prims.bitwise_not,
)  # fmt: skip
DIVIDING = (prims.fmod, prims.remainder, prims.floor_div)


@_on(*BINARY)
def _constants_become_numbers(call: Call) -> Traced | None:
    left, right = call.operands
    a, b = constant_of(left), constant_of(right)
    if a is not None and b is not None:
        return _fold(call, a, b)
    if a is not None and not is_number(left):
        return call.prim(a, right)
    if b is not None and not is_number(right):
        return call.prim(left, b)
    if a is not None and "commutative" in call.prim.tags:
        return call.prim(right, a)
    return None


@_on(*UNARY)
def _fold_unary(call: Call) -> Traced | None:
    a = constant_of(call.operands[0])
    return None if a is None else _fold(call, a)


def _fold(call: Call, *numbers: Any) -> Traced | None:
    dtype = next(x.dtype for x in call.operands if not is_number(x))
    if not all(isinstance(number, (int, float)) for number in numbers):
        return None
    if call.prim in DIVIDING and numbers[1] == 0:
        return None
    return call.full(
        call.prim.reference(*(torch.tensor(number, dtype=dtype) for number in numbers)).item()
    )


@_on(prims.add, prims.sub)
def _plus_zero(call: Call) -> Traced | None:
    a, b = call.operands
    # a + 0.0 turns -0.0 into 0.0, a - 0.0 does not.
    exact = call.meta.dtype in INTEGER_DTYPES or call.prim is prims.sub
    return a if exact and _is_plain(b, 0) and str(b) != "-0.0" else None


@_on(prims.mul, prims.div, prims.pow)
def _times_one(call: Call) -> Traced | None:
    a, b = call.operands
    return a if _is_plain(b, 1) else None


@_on(prims.neg, prims.bitwise_not)
def _twice(call: Call) -> Traced | None:
    (a,) = call.operands
    return a.args[0] if a.target is call.prim else None


@_on(prims.where)
def _where(call: Call) -> Traced | None:
    cond, a, b = call.operands
    chosen = constant_of(cond)
    if chosen is not None:
        choice = a if chosen else b
        return call.full(choice) if is_number(choice) else choice
    if a is b and not is_number(a):
        return a
    if not is_number(a):
        number = constant_of(b)
        if number is not None and not is_number(b):
            return prims.where(cond, a, number)
    number = constant_of(a)
    if number is not None and not is_number(a) and not is_number(b):
        return prims.where(cond, number, b)
    return None


def is_lossless(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of ``source`` is one of ``target``."""
    if source is torch.bool or source is target:
        return True
    if source in INTEGER_DTYPES and target in INTEGER_DTYPES:
        a, b = torch.iinfo(source), torch.iinfo(target)
        return b.min <= a.min and a.max <= b.max
    if source in HALF_DTYPES:
        return target in (torch.float32, torch.float64)
    return source is torch.float32 and target is torch.float64


@_on(prims.convert)
def _convert(call: Call) -> Traced | None:
    (a,) = call.operands
    if a.dtype is call.meta.dtype:
        return a
    number = constant_of(a)
    if isinstance(number, (int, float)):
        return call.full(torch.tensor(number, dtype=a.dtype).to(call.meta.dtype).item())
    if a.target is prims.convert and is_lossless(a.args[0].dtype, a.dtype):
        return prims.convert(a.args[0], dtype=call.meta.dtype)
    return None


@_on(prims.broadcast_in_dim, prims.reshape, prims.permute, prims.slice, prims.flip)
def _move_constant(call: Call) -> Traced | None:
    number = constant_of(call.operands[0])
    return None if number is None else call.full(number)


@_on(prims.broadcast_in_dim)
def _broadcast(call: Call) -> Traced | None:
    (a,) = call.operands
    dims = call.params["dims"]
    if len(dims) == call.meta.ndim and same_shape(a.shape, call.meta.shape):
        return a
    if a.target is prims.broadcast_in_dim:
        composed = tuple(dims[dim] for dim in a.params["dims"])
        return prims.broadcast_in_dim(a.args[0], shape=call.params["shape"], dims=composed)
    return None


@_on(prims.reshape)
def _reshape(call: Call) -> Traced | None:
    (a,) = call.operands
    if same_shape(a.shape, call.meta.shape):
        return a
    if a.target is prims.reshape:
        return prims.reshape(a.args[0], shape=call.params["shape"])
    return None


@_on(prims.permute)
def _permute(call: Call) -> Traced | None:
    (a,) = call.operands
    dims = call.params["dims"]
    if dims == tuple(range(a.ndim)):
        return a
    if a.target is prims.permute:
        inner = a.params["dims"]
        return prims.permute(a.args[0], dims=tuple(inner[dim] for dim in dims))
    return None


@_on(prims.slice)
def _slice(call: Call) -> Traced | None:
    (a,) = call.operands
    dim, start, stop, step = (call.params[name] for name in ("dim", "start", "stop", "step"))
    is_whole = _is_plain(start, 0) and step == 1 and same_size(stop, a.shape[dim])
    return a if is_whole else None


@_on(prims.flip)
def _flip(call: Call) -> Traced | None:
    (a,) = call.operands
    if all(is_one(a.shape[dim]) for dim in call.params["dims"]):
        return a
    return a.args[0] if a.target is prims.flip and a.params["dims"] == call.params["dims"] else None


@_on(prims.pad)
def _pad(call: Call) -> Traced | None:
    if all(_is_plain(n, 0) for n in (*call.params["low"], *call.params["high"])):
        return call.operands[0]
    return None


@_on(prims.cat)
def _cat(call: Call) -> Traced | None:
    return call.operands[0] if len(call.operands) == 1 else None


@_on(prims.sum, prims.prod, prims.amax, prims.amin, prims.any, prims.all)
def _reduce_nothing(call: Call) -> Traced | None:
    (a,) = call.operands
    if all(is_one(a.shape[dim]) for dim in call.params["dims"]):
        return prims.reshape(a, shape=call.meta.shape)
    return None
