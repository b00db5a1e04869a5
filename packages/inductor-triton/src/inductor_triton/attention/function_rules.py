"""Cheaper instructions in functions of scores and positions.

A score counts by its absolute value: its exponential turns absolute errors into relative ones. For
operands of 16 bits, errors of 1e-6 are far below those of the products. Positions are below
``EXACT``, where float32 and int32 agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from loopir import (
    Body,
    Call,
    Instruction,
    Operand,
    Rule,
    Value,
    apply_rules,
    call,
    remove_dead,
    rule,
)

from inductor_triton.kernels.tiling import LONG

EXACT = 1 << 23
"""Floats from here to twice this are neighbouring integers: their low bits count up from 0."""
BITS = 0x4B000000
"""EXACT as a float32."""
POSITIONS = ("b", "h", "q", "k")


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What is known of a function's values: the names of positions, and whether operands have 16
    bits.
    """

    positions: frozenset[str]
    is_half: bool

    def is_position(self, value: Operand) -> bool:
        """Whether an operand is a position."""
        return isinstance(value, Value) and value.name in self.positions


@rule("tanh(x)")
def fast_tanh(facts: FunctionFacts, step: Instruction, x: Operand) -> Call | None:
    """tanh with an absolute error of 4e-7."""
    return call("tanh16", x) if facts.is_half and step.dtype is torch.float32 else None


@rule("div(x, NUMBER)")
def product_of_inverse(
    facts: FunctionFacts, step: Instruction, x: Operand, NUMBER: float
) -> Call | None:
    """A quotient as a product, with one more rounding."""
    if not facts.is_half or step.dtype is not torch.float32 or NUMBER == 0:
        return None
    return call("mul", x, call("constant", 1 / NUMBER))


@rule("cast(sub(x, y))")
def float_distance(facts: FunctionFacts, step: Instruction, x: Operand, y: Operand) -> Call | None:
    """A distance of positions as a float: the positions are converted, once per row and column."""
    if step.dtype is not torch.float32 or not (facts.is_position(x) and facts.is_position(y)):
        return None
    return call("sub", call("cast", x), call("cast", y))


@rule("cast(x)")
def float_position(facts: FunctionFacts, step: Instruction, x: Operand) -> Call | None:
    """A position as a float without a conversion, which takes as long as an exponential."""
    if step.dtype is not torch.float32 or not facts.is_position(x):
        return None
    bits = call("or", x, call("constant", BITS, dtype=torch.int32), dtype=torch.int32)
    return call("sub", call("bitcast", bits), call("constant", float(EXACT)))


def _after_cast(op: str) -> Rule:
    @rule(f"cast({op}(x))")
    def converted_first(facts: FunctionFacts, step: Instruction, x: Operand) -> Call | None:
        """The operation on floats, if that leaves a distance to be converted."""
        return call(op, call("cast", x)) if step.dtype is torch.float32 else None

    return converted_first


@rule("remainder(x, NUMBER)")
def low_bits(facts: FunctionFacts, step: Instruction, x: Operand, NUMBER: int) -> Call | None:
    """The remainder of a power of two."""
    is_integer = step.dtype is torch.int32 and isinstance(NUMBER, int)
    if not is_integer or NUMBER <= 0 or NUMBER & (NUMBER - 1):
        return None
    return call("and", x, call("constant", NUMBER - 1))


RULES = (
    fast_tanh, product_of_inverse, float_distance, float_position,
    *map(_after_cast, ("abs", "neg")), low_bits,
)  # fmt: skip


def simplify(body: Body, is_half: bool, is_short: bool) -> Body:
    """``body`` with cheaper instructions. ``is_short``: all positions, and sizes of tensors, are
    below ``EXACT``.
    """
    positions = frozenset(
        str(step.result)
        for step in body.instructions
        if step.op == "load" and step.args[0] in POSITIONS and is_short
    )
    steps = body.instructions
    if is_short:
        steps = narrow_indices(steps)
    (changed,) = remove_dead(apply_rules([steps], RULES, FunctionFacts(positions, is_half)))
    return Body(body.inner, changed)


def work(body: Body) -> set[str]:
    """What a function does for each score: ``"lookup"``, another element of a tensor; ``"long"``,
    operations of many instructions.
    """
    read: dict[str, set[str]] = {}
    found = set[str]()
    for step in body.instructions:
        names = {str(step.args[0])} if step.op == "load" else set[str]()
        names = names.union(*(read.get(name, set()) for name in step.reads))
        read[str(step.result)] = names
        if names & {"score", "grad"} or {"q", "k"} <= names:
            found |= {"lookup"} if step.op == "indirect" else set()
            found |= {"long"} if step.op in (*LONG, "tanh16") else set()
    return found


_INTEGER = ("cast", "add", "where", "index_expr", "constant")


def narrow_indices(steps: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Computes indices of captured tensors in 32 bits: int64 values that only become indices, from
    numbers of 32 bits. Adding a size to an index that is not negative cannot overflow.
    """
    narrow = {step.result for step in steps if step.dtype is torch.int64 and step.op in _INTEGER}
    dtypes = {step.result: step.dtype for step in steps}
    while True:
        wide = {
            name
            for step in steps
            for name in step.reads
            if name in narrow
            and step.op not in ("indirect", "lt")
            and not (step.result in narrow and step.op != "cast")
        }
        wide |= {
            step.result
            for step in steps
            if step.result in narrow
            and any(_is_wide(dtypes.get(name), name in narrow) for name in _values(step))
        }
        if not wide & narrow:
            break
        narrow -= wide
    return tuple(
        replace(step, dtype=torch.int32) if step.result in narrow else step for step in steps
    )


def _values(step: Instruction) -> list[str]:
    return [arg.name for arg in step.args if isinstance(arg, Value)]


def _is_wide(dtype: torch.dtype | None, is_narrow: bool) -> bool:
    return not is_narrow and dtype not in (torch.int32, torch.bool)
