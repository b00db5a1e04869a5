"""Records inner functions as loop programs, simplifies their indices, and splits loops so that
divisions vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from loopir.ir.body import Recorder, replay
from loopir.ir.expr import FloorDiv, Mod, symbol
from loopir.ir.kernel import Instruction, Range, Value
from loopir.ir.node import Access
from loopir.ir.simplify import ONE, Extents, Facts, exact_quotient, extents_of


class SimplifyingRecorder(Recorder):
    """A recorder that simplifies indices, given the enclosing loops."""

    def __init__(self, facts: Facts, extents: Extents) -> None:
        super().__init__()
        self.facts = facts
        self.extents = dict(extents)

    def simplified(self, index: sympy.Expr) -> sympy.Expr:
        return self.facts.simplify(index, self.extents)

    def indirect(self, value: Value, size: sympy.Expr) -> sympy.Symbol:
        result = super().indirect(value, size)
        self.extents[result] = sympy.sympify(size)
        return result


def index_exprs(instructions: Sequence[Instruction]) -> list[sympy.Expr]:
    """Every index expression of a program."""
    return [expr for step in instructions if step.op != "indirect" for expr in step.expressions]


def find_split(
    exprs: Sequence[sympy.Expr], loops: Sequence[Range]
) -> tuple[Range, sympy.Expr] | None:
    """A loop and a divisor of its extent such that splitting it there removes a division."""
    by_symbol = {item.symbol: item for item in loops}
    for expr in exprs:
        for division in (
            sorted(expr.atoms(FloorDiv, Mod), key=str) if expr.has(FloorDiv, Mod) else ()
        ):
            item = by_symbol.get(division.args[0])  # type: ignore[arg-type]
            if item is None:
                continue
            divisor: sympy.Expr = division.args[1]  # type: ignore[assignment]
            quotient = exact_quotient(item.extent, divisor)
            if quotient is not None and quotient != ONE and divisor != ONE:
                return item, divisor
    return None


def split_loops(
    programs: Sequence[tuple[Instruction, ...]],
    loops: list[Range],
    facts: Facts,
    prefix: str,
    fixed: Sequence[Range],
) -> tuple[list[tuple[Instruction, ...]], list[Range]]:
    """Splits loops until no division by a divisor of an extent is left; returns the rewritten
    programs and loops.
    """
    programs = list(programs)
    count = len(loops)
    for _ in range(8):
        found = find_split([expr for program in programs for expr in index_exprs(program)], loops)
        if found is None:
            break
        item, divisor = found
        outer = Range(symbol(f"{prefix}{count}"), exact_quotient(item.extent, divisor) or ONE)
        inner = Range(symbol(f"{prefix}{count + 1}"), divisor)
        count += 2
        position = loops.index(item)
        loops = [*loops[:position], outer, inner, *loops[position + 1 :]]
        substitution = {item.symbol: outer.symbol * divisor + inner.symbol}
        programs = rewrite(programs, substitution, facts, [*loops, *fixed])
    return programs, loops


def rewrite(
    programs: Sequence[tuple[Instruction, ...]],
    substitution: dict,
    facts: Facts,
    loops: Sequence[Range],
) -> list[tuple[Instruction, ...]]:
    """The programs with loop symbols replaced; they run one after the other and share values."""
    recorder = SimplifyingRecorder(facts, extents_of(loops))
    values: dict[str, Value] = {}
    result = []
    for program in programs:
        start = len(recorder.instructions)
        replay(program, recorder, substitution, values)
        result.append(tuple(recorder.instructions[start:]))
    return result


def accesses(instructions: Sequence[Instruction]) -> tuple[Access, ...]:
    """The loads of a program."""
    found: dict[Access, None] = {}
    for step in instructions:
        if step.op == "load":
            found[Access(str(step.args[0]), step.args[1], step.args[2] is not None)] = None  # type: ignore[arg-type]
    return tuple(found)
