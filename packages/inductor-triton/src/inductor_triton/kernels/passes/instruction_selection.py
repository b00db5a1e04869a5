"""Selects instructions that the device computes faster or more exactly than those of the kernel.

The rules run last, when the tiling is known. ``ops`` or ``instructions`` writes the operations that
only these rules produce, like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import sympy
import torch
from loopir import Call, Instruction, Operand, Rule, Value, apply_rules, call, remove_dead, rule

from inductor_triton.kernels.facts import Facts
from inductor_triton.kernels.indexing import bounds, integer

RANDOM = ("uniform", "uniform16")

# -- precision -------------------------------------------------------------------------------------


@rule("exp(x)")
def exp16(facts: Facts, step: Instruction, x: Operand) -> Call | None:
    """e**x to 16 bits."""
    return call("exp16", x) if _is_narrow(facts, step) else None


@rule("tanh(x)")
def tanh16(facts: Facts, step: Instruction, x: Operand) -> Call | None:
    """tanh(x) to 16 bits."""
    return call("tanh16", x) if _is_narrow(facts, step) else None


@rule("add(erf(x), 1.0)")
def one_plus_erf(facts: Facts, step: Instruction, x: Operand) -> Call | None:
    """``1 + erf(x)``, most of gelu's cost, if a relative error is acceptable: the result is rounded
    to 16 bits or only multiplied.
    """
    if step.dtype is not torch.float32:
        return None
    if step.result in facts.narrow:
        return call("one_plus_erf16", x)
    only_multiplied = all(reader.op == "mul" for reader in facts.readers[str(step.result)])
    return call("one_plus_erf32", x) if only_multiplied else None


@rule("div(x, y)")
def div_rounded(facts: Facts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """A correctly rounded quotient. Triton's ``/`` of float32 has an error of 2 ulp, so that 9 / 3
    can be less than 3: enough where the result is rounded to 16 bits.
    """
    is_wide = step.dtype is torch.float32 and step.result not in facts.narrow
    return call("div_rn", x, y) if is_wide else None


def _is_narrow(facts: Facts, step: Instruction) -> bool:
    return step.result in facts.narrow and step.dtype is not torch.float64


# -- softmax ---------------------------------------------------------------------------------------


@rule("exp16(sub(x, log(total)))")
def quotient(facts: Facts, step: Instruction, x: Operand, total: Value) -> Call | None:
    """``exp(x - log(total))`` as ``exp(x) / total``, with the exponential computed for the sum."""
    if total.name not in facts.sums:
        return None
    return call("mul", call("exp16", x, name=f"{step.result}_exp"), _reciprocal(total))


@rule("exp16(sub(x, maximum))")
def exp_difference(facts: Facts, step: Instruction, x: Operand, maximum: Value) -> Call | None:
    """``exp(x - maximum)``.

    If a row stays in registers, each exponential takes one multiply-add: rounding ``maximum *
    scale`` changes all of them by the same factor, which is also in their sum.
    """
    if maximum.name not in facts.maxima:
        return None
    if facts.config is None or not facts.config.grid:
        return call("exp_difference", x, maximum)
    scale = call("row_scale", maximum, name=f"{maximum}_scale")
    return call("exp_scaled", x, scale, call("mul", maximum, scale, name=f"{maximum}_scaled"))


@rule("div(x, total)")
def multiply_by_reciprocal(
    facts: Facts, step: Instruction, x: Operand, total: Operand
) -> Call | None:
    """A division by the sum of a softmax as a product with the reciprocal, which is computed once
    per row.
    """
    is_sum = isinstance(total, Value) and total.name in facts.sums
    return call("mul", x, _reciprocal(total)) if is_sum else None  # type: ignore[arg-type]


def _reciprocal(total: Value) -> Call:
    return call("reciprocal", total, dtype=torch.float32, name=f"{total}_inverse")


# -- random numbers --------------------------------------------------------------------------------


def place_rule(op: str) -> Rule:
    """Makes the rule for random numbers whose counter is an index."""

    @rule(f"{op}(seed, index_expr(place))")
    def uniform_at(
        facts: Facts, step: Instruction, seed: Operand, place: sympy.Expr
    ) -> Call | None:
        """A random number at an index. The offset of the first one is not part of the index, so
        that kernels that differ only in it are the same.
        """
        offset, rest = place.as_coeff_Add()
        first = integer(offset)
        return None if first is None else call(f"{op}_at", seed, rest, first)

    return uniform_at


def threshold_rule(op: str, side: str, pattern: str) -> Rule:
    """Makes the rule for comparisons of a random number with a constant, as in dropout: they
    compare the random bits.
    """

    @rule(pattern.format(f"{op}_at(seed, place, first)"))
    def threshold(facts: Facts, step: Instruction, LIMIT: float, **number: Operand) -> Call | None:
        has_bits = 0 < LIMIT < 1 and 0 < random_bits(LIMIT) < 2**24 - 1
        operands = (number[name] for name in ("seed", "place", "first"))
        return call(f"{op}_{side}", *operands, LIMIT) if has_bits else None

    return threshold


def random_bits(limit: float) -> Fraction:
    """``limit``, rounded to float32, in units of 2**-24, the spacing of uniform numbers."""
    return Fraction(torch.tensor(limit).item()) * 2**24


# -- places in a row -------------------------------------------------------------------------------


@rule("eq(index_expr(place), other)")
def equal_place(facts: Facts, step: Instruction, place: sympy.Expr, other: Operand) -> Call | None:
    """Compares an index with a value that is shared by many elements, in 32 bits: a loss picks one
    element of each row.
    """
    name = str(other)
    is_wide = facts.index_type == "int32" and bounds(place, facts.symbol_bounds).lo >= 0
    axes = facts.value_axes.get(name, frozenset())
    if not is_wide or facts.expr_axes(place) <= axes or facts.is_constant(name):
        return None
    narrowed = call("narrow_place", other, dtype=torch.int32, name=f"{name}_place")
    total = facts.sum_before(str(step.result)) if place == facts.row else None
    if total is not None:
        # If the comparisons ran earlier, their results would take up the row's registers.
        narrowed = call("after", narrowed, Value(total), dtype=torch.int32, name=f"{name}_late")
    return call("eq_place", place, narrowed)


# -- rounding --------------------------------------------------------------------------------------


@rule("add(x, y)")
def add_rounded(facts: Facts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """An addition that is not contracted with a product whose rounded value has other uses."""
    return _rounded(facts, step, call("add_rn", x, y))


@rule("sub(x, y)")
def sub_rounded(facts: Facts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """A subtraction that is not contracted with a product whose rounded value has other uses."""
    return _rounded(facts, step, call("sub_rn", x, y))


def _rounded(facts: Facts, step: Instruction, replacement: Call) -> Call | None:
    is_float = step.dtype in (torch.float32, torch.float64)
    shares = not facts.shared_products.isdisjoint(step.reads)
    return replacement if is_float and shares else None


SELECTION = (
    one_plus_erf, exp16, tanh16, quotient, exp_difference, multiply_by_reciprocal,
    *(place_rule(op) for op in RANDOM),
    *(threshold_rule(op, "below", "lt({}, LIMIT)") for op in RANDOM),
    *(threshold_rule(op, "above", "lt(LIMIT, {})") for op in RANDOM),
    equal_place, div_rounded,
)  # fmt: skip
# these run last because the other rules match additions and subtractions
ROUNDING = (add_rounded, sub_rounded)


def select_instructions(
    blocks: Sequence[Sequence[Instruction]], facts: Facts
) -> list[tuple[Instruction, ...]]:
    """The instructions to write for ``blocks``; later blocks see the values of earlier ones."""
    selected = apply_rules(blocks, SELECTION, facts)
    return remove_dead(apply_rules(selected, ROUNDING, facts))
