"""Computes a sum and the squared distances from a value that depends on it, such as mean and
variance, in one pass over chunks.

The second body of such a kernel sums (a - m)^2 over the same a that the first one sums. A chunk of
n elements has the sum s and the squares q about its own mean c = s / n; the squares about any m
that is known later are q + n * (c - m)^2 (Chan, Golub and LeVeque 1983), without the cancellation
of a sum of squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from loopir import Body, Call, Instruction, Value, accessed, call, definitions, write_call

from .online_softmax import meaning


@dataclass(frozen=True, slots=True)
class Square:
    """``step`` sums the squared distances of ``operand`` from ``centre``. ``before`` has the
    instructions that compute ``operand``; ``total`` is the result that sums the same operand.
    """

    step: Instruction
    before: tuple[Instruction, ...]
    operand: Value
    centre: Value
    total: str


Squares = tuple[Square, ...]


def squares_of(bodies: Sequence[Body], place: int) -> Squares:
    """The sums of squares in the next inner body after ``bodies[place]``; () if that body contains
    anything else.
    """
    rest = bodies[place + 1 : place + 3]
    between = rest[0].instructions if rest and not rest[0].inner else ()
    second = rest[-1] if len(rest) == 2 and not rest[0].inner else None
    if not bodies[place].inner or second is None or not second.inner:
        return ()
    inside = definitions(second.instructions)
    sums: dict[tuple[object, object], str] = {
        (step.dtype, meaning(step.args[1], _defined(bodies[place]))): str(step.result)
        for step in bodies[place].instructions
        if step.op == "reduce" and step.args[0] == "sum"
    }
    found: list[Square] = []
    for step in second.instructions:
        if step.op in ("store", "scan", "indirect", "uniform", "uniform16"):
            return ()
        if step.op == "reduce":
            square = _square(step, inside, sums, second)
            if square is None:
                return ()
            found.append(square)
    if accessed(between, "store") & accessed(second.instructions, "load"):
        return ()
    return tuple(found)


def _defined(body: Body) -> dict[str, Instruction]:
    return {
        str(step.result): step
        for step in body.instructions
        if step.result is not None and step.op != "reduce"
    }


def _square(
    step: Instruction,
    inside: dict[str, Instruction],
    sums: dict[tuple[object, object], str],
    body: Body,
) -> Square | None:
    product = inside.get(str(step.args[1])) if step.args[0] == "sum" else None
    if product is None or product.op != "mul" or product.args[0] != product.args[1]:
        return None
    distance = inside.get(str(product.args[0]))
    if (
        distance is None
        or distance.op != "sub"
        or distance.dtype not in (torch.float32, torch.float64)
    ):
        return None
    operand, centre = distance.args
    if not isinstance(operand, Value) or not isinstance(centre, Value) or centre.name in inside:
        return None
    total = sums.get((step.dtype, meaning(operand, inside)))
    if total is None or not distance.dtype == product.dtype == step.dtype:
        return None
    needed = {operand.name}
    for other in reversed(body.instructions):
        if str(other.result) in needed:
            needed.update(other.reads)
    before = tuple(other for other in body.instructions if str(other.result) in needed)
    return Square(step, before, operand, centre, total)


def of_chunk(squares: Squares, length: int) -> list[tuple[bool, tuple[Instruction, ...]]]:
    """Bodies (with whether each is inner) that compute the squares of a chunk of ``length``
    elements about its own mean.
    """
    if not squares:
        return []
    outer: list[Instruction] = []
    inner: dict[str, Instruction] = {}
    for square in squares:
        name, dtype = str(square.step.result), square.step.dtype
        outer += write_call(_mean(Value(square.total), length), f"{name}_mean", dtype)
        inner |= definitions(square.before)
        distance = call("sub", square.operand, Value(f"{name}_mean"))
        total = call("reduce", "sum", call("mul", distance, distance))
        inner |= definitions(write_call(total, name, dtype))
    return [(False, tuple(outer)), (True, tuple(inner.values()))]


def of_chunks(
    squares: Squares, length: int, load: Callable[[str, str], Instruction]
) -> tuple[Instruction, ...]:
    """The inner body that adds up the squares of all chunks, each shifted to the common centre."""
    steps: list[Instruction] = []
    for square in squares:
        name = str(square.step.result)
        part, total = load(name, "part"), replace(load(square.total, "part"), result=f"{name}_sum")
        apart = call("sub", _mean(Value(f"{name}_sum"), length), square.centre)
        moved = call("mul", call("mul", apart, apart), call("constant", float(length)))
        whole = call("reduce", "sum", call("add", Value(str(part.result)), moved))
        steps += [part, total, *write_call(whole, name, square.step.dtype)]
    return tuple(steps)


def _mean(total: Value, length: int) -> Call:
    return call("mul", total, call("constant", 1 / length))
