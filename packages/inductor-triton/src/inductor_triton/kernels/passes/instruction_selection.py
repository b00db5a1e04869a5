"""Instructions that the device computes faster or more exactly than those of the kernel.

The rules run last, when the tiling is known. An operation that only they make is written by
``ops`` or ``instructions`` like any other.
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
    """``1 + erf(x)``, most of gelu's cost, if its relative error does not count: 16 bits are kept
    or it is only multiplied.
    """
    if step.dtype is not torch.float32:
        return None
    if step.result in facts.narrow:
        return call("one_plus_erf16", x)
    only_multiplied = all(reader.op == "mul" for reader in facts.readers[str(step.result)])
    return call("one_plus_erf32", x) if only_multiplied else None


def _is_narrow(facts: Facts, step: Instruction) -> bool:
    return step.result in facts.narrow and step.dtype is not torch.float64


# -- softmax ---------------------------------------------------------------------------------------


@rule("exp16(sub(x, log(total)))")
def quotient(facts: Facts, step: Instruction, x: Operand, total: Value) -> Call | None:
    """``exp(x - log(total))`` as ``exp(x) / total``: the exponential is that of the sum."""
    if total.name not in facts.sums:
        return None
    return call("mul", call("exp16", x, name=f"{step.result}_exp"), _reciprocal(total))


@rule("exp16(sub(x, maximum))")
def exp_difference(facts: Facts, step: Instruction, x: Operand, maximum: Value) -> Call | None:
    """``exp(x - maximum)``. If all exponentials of a row are taken of elements in registers, one
    multiply-add each: that ``maximum * scale`` is rounded is a factor that they share with their
    sum.
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
    """A quotient by the sum of a softmax, whose reciprocal is computed once per row."""
    is_sum = isinstance(total, Value) and total.name in facts.sums
    return call("mul", x, _reciprocal(total)) if is_sum else None  # type: ignore[arg-type]


def _reciprocal(total: Value) -> Call:
    return call("reciprocal", total, dtype=torch.float32, name=f"{total}_inverse")


# -- random numbers --------------------------------------------------------------------------------


def place_rule(op: str) -> Rule:
    """The rule for random numbers whose counter is an index."""

    @rule(f"{op}(seed, index_expr(place))")
    def uniform_at(
        facts: Facts, step: Instruction, seed: Operand, place: sympy.Expr
    ) -> Call | None:
        """A random number at a place: the number of the first one is no part of the index, so that
        kernels that differ in it are the same.
        """
        offset, rest = place.as_coeff_Add()
        first = integer(offset)
        return None if first is None else call(f"{op}_at", seed, rest, first)

    return uniform_at


def threshold_rule(op: str, side: str, pattern: str) -> Rule:
    """A comparison of a random number with a constant, as in dropout: its bits decide."""

    @rule(pattern.format(f"{op}_at(seed, place, first)"))
    def threshold(facts: Facts, step: Instruction, LIMIT: float, **number: Operand) -> Call | None:
        has_bits = 0 < LIMIT < 1 and 0 < random_bits(LIMIT) < 2**24 - 1
        operands = (number[name] for name in ("seed", "place", "first"))
        return call(f"{op}_{side}", *operands, LIMIT) if has_bits else None

    return threshold


def random_bits(limit: float) -> Fraction:
    """A float32 ``limit`` of uniform numbers, which are multiples of 2**-24, in that unit."""
    return Fraction(torch.tensor(limit).item()) * 2**24


# -- places in a row -------------------------------------------------------------------------------


@rule("eq(index_expr(place), other)")
def equal_place(facts: Facts, step: Instruction, place: sympy.Expr, other: Operand) -> Call | None:
    """A place compared with a number that is the same for many places, in 32 bits: a loss picks
    one element of each row.
    """
    name = str(other)
    is_wide = facts.index_type == "int32" and bounds(place, facts.symbol_bounds).lo >= 0
    axes = facts.value_axes.get(name, frozenset())
    if not is_wide or facts.expr_axes(place) <= axes or facts.is_constant(name):
        return None
    narrowed = call("narrow_place", other, dtype=torch.int32, name=f"{name}_place")
    total = facts.sum_before(str(step.result)) if place == facts.row else None
    if total is not None:
        # Compared any earlier, the results would take the registers of the row.
        narrowed = call("after", narrowed, Value(total), dtype=torch.int32, name=f"{name}_late")
    return call("eq_place", place, narrowed)


# -- rounding --------------------------------------------------------------------------------------


@rule("add(x, y)")
def add_rounded(facts: Facts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """An addition that is not contracted with a product that others see rounded."""
    return _rounded(facts, step, call("add_rn", x, y))


@rule("sub(x, y)")
def sub_rounded(facts: Facts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """A subtraction that is not contracted with a product that others see rounded."""
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
    equal_place,
)  # fmt: skip
ROUNDING = (add_rounded, sub_rounded)  # after the others, which match additions and subtractions


def select_instructions(
    blocks: Sequence[Sequence[Instruction]], facts: Facts
) -> list[tuple[Instruction, ...]]:
    """The instructions to write for ``blocks``, of which later ones see the values of earlier."""
    selected = apply_rules(blocks, SELECTION, facts)
    return remove_dead(apply_rules(selected, ROUNDING, facts))
