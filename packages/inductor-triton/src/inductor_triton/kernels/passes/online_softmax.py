"""Computes softmax's maximum and sum of exponentials in one pass over a long row (Milakov and
Gimelshein, arXiv:1805.02867).

Two bodies become one pass if the first only computes the maximum m of some a, and the second only
the sum of exp(a - m), with the same a computed again. Each lane has its own maximum and sum, so
that the loop needs no exchange between lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch
from loopir import (
    Body,
    Instruction,
    Value,
    accessed,
    definitions,
    matches,
    parse_pattern,
    steps_of,
)

SUM_OF_EXPONENTIALS = parse_pattern("reduce('sum', exp(sub(x, m)))")


@dataclass(frozen=True, slots=True)
class OnlinePair:
    """The instructions that compute a, and the reductions for its maximum and for the sum."""

    operand: tuple[Instruction, ...]
    maximum: Instruction
    total: Instruction


def one_pass(bodies: Sequence[Body]) -> list[Body | OnlinePair]:
    """The bodies, with every pair merged into one pass; bodies between the two run after it."""
    plan: list[Body | OnlinePair] = []
    rest = list(bodies)
    while rest:
        body, between = rest.pop(0), rest[:1] if rest and not rest[0].inner else []
        later = rest[len(between)] if len(rest) > len(between) else None
        pair = (
            online_pair(body, later) if body.inner and later is not None and later.inner else None
        )
        if pair is None or accessed(steps_of(between), "store") & _reads(later):
            plan.append(body)
            continue
        plan += [pair, *between]
        del rest[: len(between) + 1]
    return plan


def evictions(parts: Sequence[Body | OnlinePair], number: int) -> dict[str, str]:
    """Eviction policies for the rows that a pass loads: they stay in the cache until the last pass
    that reads the same buffer.
    """
    reads = [_reads(part) for part in parts]
    later = set().union(*reads[number + 1 :])
    return {name: "evict_last" if name in later else "evict_first" for name in reads[number]}


def _reads(part: Body | OnlinePair | None) -> set[str]:
    steps = part.operand if isinstance(part, OnlinePair) else part.instructions if part else ()
    return accessed(steps, "load")


def online_pair(first: Body, second: Body) -> OnlinePair | None:
    """Two inner bodies as a pair; None if they do not match."""
    maximum, total = _only_reduction(first, "max"), _only_reduction(second, "sum")
    if (
        maximum is None
        or total is None
        or total.dtype is not torch.float32
        or maximum.dtype is not torch.float32
    ):
        return None
    inside, before = definitions(second.instructions), definitions(first.instructions)
    for match in matches(SUM_OF_EXPONENTIALS, total, inside):
        is_same = meaning(match["x"], inside) == meaning(maximum.args[1], before)
        if is_same and str(match["m"]) == maximum.result:
            operand = (step for step in first.instructions if step is not maximum)
            return OnlinePair(tuple(operand), maximum, total)
    return None


def _only_reduction(body: Body, kind: str) -> Instruction | None:
    """The only reduction of a body that has no other effect than to report an index; else None."""
    reduces = [step for step in body.instructions if step.op in ("reduce", "scan", "store")]
    if len(reduces) == 1 and reduces[0].op == "reduce" and reduces[0].args[0] == kind:
        return reduces[0]
    return None


def meaning(operand: object, defined: dict[str, Instruction]) -> object:
    """An operand as an expression of values that are defined outside the body."""
    if isinstance(operand, sympy.Expr):
        found = {symbol.name: symbol for symbol in operand.free_symbols}  # type: ignore[attr-defined]
        inside = [name for name in defined if name in found]
        names = {found[name]: sympy.Symbol(f"_{i}") for i, name in enumerate(inside)}
        return (str(operand.xreplace(names)), *(meaning(Value(name), defined) for name in inside))
    if not isinstance(operand, Value) or operand.name not in defined:
        return str(operand)
    step = defined[operand.name]
    return (step.op, step.dtype, *(meaning(arg, defined) for arg in step.args))
