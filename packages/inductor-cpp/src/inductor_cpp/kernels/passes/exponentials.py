"""Log-softmax and its gradient take each exponential once: ``exp(x - max - log(sum))`` is
``exp(x - max) / sum``.

The sum has to be that of ``exp(x - max)``, so that no term is above 1. ``reuse`` then keeps the
terms in a scratch row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from loopir import (
    Call,
    Instruction,
    Kernel,
    Value,
    apply_rules,
    call,
    definitions,
    rule,
    with_blocks,
)

from .reuse import Keys


class _Same:
    """Whether two values are computed alike."""

    def __init__(self, kernel: Kernel) -> None:
        self.known = definitions(kernel.steps)
        self.keys = Keys(kernel, kernel.vector_axis)

    def __call__(self, left: Value, right: Value) -> bool:
        steps = [self.known[value.name] for value in (left, right)]
        return all(s.result in self.keys.keys for s in steps) and (
            self.keys.of(steps[0]) == self.keys.of(steps[1])
        )


@rule("exp(sub(shifted := sub(x, reduce('max', y)), log(total := reduce('sum', exp(exponent)))))")
def quotient(
    same: _Same,
    step: Instruction,
    shifted: Value,
    x: Value,
    y: Value,
    total: Value,
    exponent: Value,
) -> Call | None:
    """``exp(shifted - log(total))``, where ``shifted`` is ``x - max(x)``."""
    if step.dtype is not torch.float32 or not same(x, y) or not same(exponent, shifted):
        return None
    return call("div", call("exp", shifted, name=f"{step.result}_exp"), total)


def divide_exponentials(kernel: Kernel) -> Kernel:
    """``kernel`` with quotients for exponentials of a logarithm subtracted."""
    if not any(step.op == "log" for step in kernel.steps):
        return kernel
    blocks = apply_rules([body.instructions for body in kernel.bodies], [quotient], _Same(kernel))
    return replace(kernel, bodies=with_blocks(kernel.bodies, blocks))
