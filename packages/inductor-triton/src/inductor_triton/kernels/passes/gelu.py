"""Replaces gelu by a single operation if its result is rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from loopir import (
    Body,
    Call,
    Instruction,
    Operand,
    Value,
    apply_rules,
    call,
    remove_dead,
    rule,
    steps_of,
    with_blocks,
)

from inductor_triton.kernels.facts import Dtypes, Facts

SMALLEST_FACTOR = 2.0**-16


@rule("mul(mul(x, 0.5), add(erf(mul(x, 0.7071067811865476)), 1.0))")
def gelu(facts: Facts, step: Instruction, x: Operand) -> Call | None:
    """``x/2 * (1 + erf(x/sqrt 2))``."""
    is_known = step.result in facts.narrow and step.dtype is torch.float32
    return call("gelu", x) if is_known else None


@rule("mul(product := gelu(x), FACTOR)")
def scaled_gelu(
    facts: Facts, step: Instruction, product: Value, x: Operand, FACTOR: float
) -> Call | None:
    """A multiple of gelu, as dropout needs it: the factor is free in the polynomial."""
    is_only_use = len(facts.readers[product.name]) == 1
    in_range = SMALLEST_FACTOR < FACTOR < 1 / SMALLEST_FACTOR
    return call("gelu", x, FACTOR) if is_only_use and in_range else None


def fuse_gelu(bodies: Sequence[Body], dtypes: Dtypes) -> tuple[Body, ...]:
    """``bodies`` with each gelu as one instruction. ``dtypes``: see :class:`Facts`."""
    steps = steps_of(bodies)
    if not any(step.op == "erf" for step in steps):
        return tuple(bodies)
    blocks = [body.instructions for body in bodies]
    blocks = apply_rules(blocks, (gelu, scaled_gelu), Facts(steps, dtypes))
    return with_blocks(bodies, remove_dead(blocks))
