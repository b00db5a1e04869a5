"""The table of derivatives: for each operand of a prim a rule, or why it has none.

A rule takes the result's gradient ``g``, the result ``y``, the operands and the parameters of the
call, and returns the gradient of its operand. Rules call prims alone, so they run on real tensors,
on metadata and in a graph under construction. The op set computes on real numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primops.errors import DerivativeError, PrimError
from primops.prim import Prim
from primops.promotion import is_number

Rule = Callable[..., Any]
REST = "*"
"""The operands of a variadic prim beyond the named ones; their rule gets their ``position``."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """Gradient of one operand: its ``formula`` and the ``rule`` that computes it, or with
    ``rule=None`` the reason why there is none.
    """

    formula: str
    rule: Rule | None


DERIVATIVES: dict[Prim, dict[str, Derivative]] = {}
"""By prim and operand. A prim without differentiable operands has its reason under ``REST``."""


def _add(prim: Prim, operand: str, derivative: Derivative) -> None:
    known = DERIVATIVES.setdefault(prim, {})
    if operand in known:
        raise PrimError(f"{prim.name}: there is a derivative for operand {operand} already")
    if operand != REST and operand not in prim.operands:
        raise PrimError(f"{prim.schema} has no operand {operand}")
    known[operand] = derivative


def derive(prim: Prim, operand: str, formula: str, rule: Rule) -> None:
    """Adds the rule for one operand. Raises PrimError if it has one."""
    _add(prim, operand, Derivative(formula, rule))


def register_vjp(prim: Prim, operand: str) -> Callable[[Rule], Rule]:
    """Decorator form of ``derive``; the rule's docstring is the formula."""

    def add(rule: Rule) -> Rule:
        derive(prim, operand, " ".join((rule.__doc__ or "").split()), rule)
        return rule

    return add


def no_derivative(reason: str, *prims: Prim, operand: str = REST) -> None:
    """States why one operand, by default all that have no entry, has no derivative."""
    for prim in prims:
        _add(prim, operand, Derivative(f"no rule: {reason}", None))


def derivative_of(prim: Prim, position: int) -> Derivative:
    """The entry for the operand at ``position``. Raises DerivativeError for a prim without one."""
    entries = DERIVATIVES.get(prim, {})
    name = prim.operands[position] if position < len(prim.operands) else REST
    found = entries.get(name) or entries.get(REST)
    if found is None:
        raise DerivativeError(
            f"{prim.name}: no derivative is stated for operand {position} of {prim.schema}; add "
            "one in primops.derivatives"
        )
    return found


def describe(prim: Prim) -> str:
    """The derivative as one line of text; empty when the table says nothing about the prim."""
    entries = DERIVATIVES.get(prim, {})
    named = [(name, entries[name].formula) for name in (*prim.operands, REST) if name in entries]
    if len(named) == 1:
        return named[0][1]
    return "; ".join(f"{'others' if name == REST else name}: {text}" for name, text in named)


def _is_differentiable(prim: Prim, operand: Any) -> bool:
    dtype = None if is_number(operand) else getattr(operand, "dtype", None)
    if dtype is not None and dtype.is_complex:
        raise DerivativeError(f"{prim.name}: the op set has no complex gradients, given {dtype}")
    return dtype is not None and dtype.is_floating_point


def gradient_of(
    prim: Prim, position: int, gradient: Any, result: Any, *operands: Any, **params: Any
) -> Any:
    """The gradient of the operand at ``position``. Raises DerivativeError when it has none.

    None may stand for the result and for operands that the formula does not read.
    """
    found = derivative_of(prim, position)
    if found.rule is None:
        reason = found.formula.removeprefix("no rule: ")
        raise DerivativeError(f"{prim.schema}: operand {position} has no derivative: {reason}")
    if position >= len(prim.operands):
        params["position"] = position
    return found.rule(gradient, result, *operands, **params)


def vjp(
    prim: Prim,
    gradient: Any,
    result: Any,
    operands: Sequence[Any],
    params: Mapping[str, Any] | None = None,
    wanted: Sequence[bool] | None = None,
) -> tuple[Any, ...]:
    """The gradient of each operand of ``result = prim(*operands, **params)``, given the result's.

    None for numbers, integer and bool operands, and operands that are not ``wanted`` (default: all
    are). Raises DerivativeError when a wanted operand has no derivative, and says why.
    """
    if wanted is not None and len(wanted) != len(operands):
        raise PrimError(f"{prim.name}: {len(wanted)} entries of wanted, {len(operands)} operands")
    positions = [
        position for position, operand in enumerate(operands)
        if (wanted is None or wanted[position]) and _is_differentiable(prim, operand)
    ]  # fmt: skip
    gradients: list[Any] = [None] * len(operands)
    for position in positions:
        if derivative_of(prim, position).rule is not None and not result.dtype.is_floating_point:
            raise DerivativeError(f"{prim.name}: a result of {result.dtype} has no derivative")
        gradients[position] = gradient_of(
            prim, position, gradient, result, *operands, **(params or {})
        )
    return tuple(gradients)
