"""Log-softmax and its gradient take each exponential once: ``exp(x - max - log(sum))`` is
``exp(x - max) / sum``.

The sum has to be that of ``exp(x - max)``, so that no term is above 1. ``reuse`` then keeps the
terms in a scratch row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from loopir import Instruction, Kernel, Operand, Value, definitions

from .reuse import Keys


def divide_exponentials(kernel: Kernel) -> Kernel:
    """``kernel`` with quotients for exponentials of a logarithm subtracted."""
    found = _Quotients(kernel)
    if not any(step.op == "log" for step in found.known.values()):
        return kernel
    bodies = tuple(
        replace(
            body,
            instructions=tuple(new for step in body.instructions for new in found.divided(step)),
        )
        for body in kernel.bodies
    )
    return replace(kernel, bodies=bodies)


class _Quotients:
    def __init__(self, kernel: Kernel) -> None:
        self.known = definitions(kernel.steps)
        self.keys = Keys(kernel, kernel.vector_axis)

    def divided(self, step: Instruction) -> list[Instruction]:
        """The instructions in the place of ``step``."""
        shifted, logarithm = (
            self._operands(step.args[0], "sub") if step.op == "exp" else (None, None)
        )
        (total,) = self._operands(logarithm, "log") or (None,)
        (term,) = self._operands(total, "sum") or (None,)
        (exponent,) = self._operands(term, "exp") or (None,)
        known = (
            exponent is not None
            and self._same(exponent, shifted)
            and self._is_below_greatest(shifted)
        )
        if not known or step.dtype is not torch.float32:
            return [step]
        name = f"{step.result}_exp"
        return [
            replace(step, result=name, args=(shifted,)),
            replace(step, op="div", args=(Value(name), total)),
        ]

    def _operands(self, value: Operand | None, op: str) -> tuple[Value | None, ...]:
        """What ``op``, or the reduction of that kind, made ``value`` of; nothing if something else
        did.
        """
        step = self.known.get(value.name) if isinstance(value, Value) else None
        if step is None or op not in (step.op, step.args[0] if step.op == "reduce" else ""):
            return (None, None) if op == "sub" else ()
        return tuple(arg for arg in step.args if isinstance(arg, Value))

    def _is_below_greatest(self, value: Value | None) -> bool:
        """Whether ``value`` is ``x - max(x)``."""
        x, greatest = self._operands(value, "sub")
        return any(self._same(each, x) for each in self._operands(greatest, "max"))

    def _same(self, left: Value | None, right: Value | None) -> bool:
        steps = [self.known[value.name] for value in (left, right) if value is not None]
        return (
            len(steps) == 2
            and all(s.result in self.keys.keys for s in steps)
            and self.keys.of(steps[0]) == self.keys.of(steps[1])
        )
