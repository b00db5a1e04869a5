"""Rules that replace instructions: what a pattern matches is computed by other instructions.

A pattern is an expression in Python's syntax. A call is an operation, ``name := call`` also binds
its result. A lower-case name stands for any operand, a name in capitals for any constant, whose
number it binds. A number stands for that constant, a string for a kind (``reduce('max', x)``). The
operands of a commutative operation match in either order. A name that occurs twice matches the
same operand twice.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .kernel import Body, Instruction, Operand, Value

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})
Match = Mapping[str, Operand]
Definitions = Mapping[str, Instruction]


@dataclass(frozen=True, slots=True)
class Call:
    """An instruction of a replacement.

    Attributes:
        op: the operation.
        args: operands; a ``Call`` becomes an instruction of its own.
        dtype: that of the result; None for that of the replaced instruction.
        name: wanted name of the result, for calls that are operands.
    """

    op: str
    args: tuple[Call | Operand, ...]
    dtype: torch.dtype | None = None
    name: str = ""


def call(op: str, *args: Call | Operand, dtype: torch.dtype | None = None, name: str = "") -> Call:
    """A :class:`Call` with its operands written one after the other."""
    return Call(op, args, dtype, name)


@dataclass(frozen=True, slots=True)
class Rule:
    """What replaces instructions that match a pattern.

    ``replacement(facts, step, **match)`` returns the new computation of ``step``'s result, or None
    to leave the step as it is.
    """

    pattern: ast.Call
    replacement: Callable[..., Call | None]

    @property
    def op(self) -> str:
        """The operation of the instructions that the rule replaces."""
        return _operation(self.pattern)


def rule(pattern: str) -> Callable[[Callable[..., Call | None]], Rule]:
    """Makes a function that builds a replacement into the rule for ``pattern``."""
    return lambda replacement: Rule(parse_pattern(pattern), replacement)


def parse_pattern(text: str) -> ast.Call:
    """The pattern of ``text``. Raises ValueError if it is no call of an operation."""
    parsed = ast.parse(text, mode="eval").body
    calls = [node.func for node in ast.walk(parsed) if isinstance(node, ast.Call)]
    if not isinstance(parsed, ast.Call) or not all(isinstance(f, ast.Name) for f in calls):
        raise ValueError(f"pattern {text!r} is no call of an operation: write op(x, y)")
    return parsed


def matches(pattern: ast.Call, step: Instruction, known: Definitions) -> Iterator[Match]:
    """The ways in which ``pattern`` matches ``step``; ``known`` are the steps before it."""
    return _match_call(pattern, step, known, {})


def _operation(pattern: ast.Call) -> str:
    return pattern.func.id.removesuffix("_")  # type: ignore[attr-defined]


def _match_call(
    pattern: ast.Call, step: Instruction, known: Definitions, bound: Match
) -> Iterator[Match]:
    if step.op != _operation(pattern) or len(step.args) != len(pattern.args):
        return
    orders = [step.args]
    if step.op in COMMUTATIVE:
        orders.append(step.args[::-1])
    for args in orders:
        yield from _match_all(pattern.args, args, known, bound)


def _match_all(
    patterns: Sequence[ast.expr], operands: Sequence[Operand], known: Definitions, bound: Match
) -> Iterator[Match]:
    if not patterns:
        yield bound
        return
    for first in _match_operand(patterns[0], operands[0], known, bound):
        yield from _match_all(patterns[1:], operands[1:], known, first)


def _match_operand(
    pattern: ast.expr, operand: Operand, known: Definitions, bound: Match
) -> Iterator[Match]:
    step = known.get(operand.name) if isinstance(operand, Value) else None
    number = step.args[0] if step is not None and step.op == "constant" else None
    match pattern:
        case ast.Name(id=name):
            value = number if name.isupper() else operand
            if value is not None and bound.get(name, value) == value:
                yield {**bound, name: value}
        case ast.Constant(value=str(kind)):
            if operand == kind:
                yield bound
        case ast.Constant(value=wanted):
            if number is not None and number == wanted:
                yield bound
        case ast.NamedExpr(target=ast.Name(id=name), value=inner):
            yield from _match_operand(inner, operand, known, {**bound, name: operand})
        case ast.Call():
            if step is not None:
                yield from _match_call(pattern, step, known, bound)


def write_call(
    root: Call,
    result: str,
    dtype: torch.dtype | None,
    names: set[str] | None = None,
    made: dict[tuple[object, ...], Value] | None = None,
) -> list[Instruction]:
    """``root`` as instructions, of which the last one computes ``result``.

    Args:
        root: the computation.
        result: the name of its value.
        dtype: that of calls which state none.
        names: those in use; new ones are added.
        made: values by their computation; an equal one is computed once.
    """
    steps: list[Instruction] = []
    names, made = {result} if names is None else names, {} if made is None else made

    def operand(arg: Call | Operand) -> Operand:
        if not isinstance(arg, Call):
            return arg
        args, own = tuple(map(operand, arg.args)), arg.dtype or dtype
        key = (arg.op, args, own)
        if key not in made:
            name = _fresh(arg.name or f"{result}_{arg.op}", names)
            made[key] = Value(name)
            steps.append(Instruction(name, arg.op, args, own))
        return made[key]

    args = tuple(map(operand, root.args))
    return [*steps, Instruction(result, root.op, args, root.dtype or dtype)]


def _fresh(wanted: str, names: set[str]) -> str:
    name, count = wanted, 0
    while name in names:
        count += 1
        name = f"{wanted}_{count}"
    names.add(name)
    return name


def apply_rules(
    blocks: Sequence[Sequence[Instruction]], rules: Sequence[Rule], facts: Any = None
) -> list[tuple[Instruction, ...]]:
    """``blocks`` after ``rules``, of which the first that applies replaces a step.

    Rules see what they have made: a replacement is matched again. Values of a block are visible in
    later ones.
    """
    rewriter = _Rewriter(rules, facts, {s.result for b in blocks for s in b if s.result})
    return [rewriter.block(steps) for steps in blocks]


class _Rewriter:
    def __init__(self, rules: Sequence[Rule], facts: Any, names: set[str]) -> None:
        self.rules: dict[str, list[Rule]] = defaultdict(list)
        for each in rules:
            self.rules[each.op].append(each)
        self.facts, self.names = facts, names
        self.known: dict[str, Instruction] = {}
        self.made: dict[tuple[object, ...], Value] = {}

    def block(self, steps: Sequence[Instruction]) -> tuple[Instruction, ...]:
        self.made.clear()  # an inner body's values are not visible in the next one
        done: list[Instruction] = []
        pending = deque(steps)
        while pending:
            step = pending.popleft()
            replacement = self.replacement(step)
            if replacement is not None:
                pending.extendleft(reversed(self.instructions(replacement, step)))
                continue
            done.append(step)
            if step.result is not None:
                self.known[step.result] = step
        return tuple(done)

    def replacement(self, step: Instruction) -> Call | None:
        for each in self.rules.get(step.op, ()):
            for match in matches(each.pattern, step, self.known):
                found = each.replacement(self.facts, step, **match)
                if found is not None:
                    return found
        return None

    def instructions(self, root: Call, step: Instruction) -> list[Instruction]:
        assert step.result is not None
        return write_call(root, step.result, step.dtype, self.names, self.made)


def remove_dead(
    blocks: Sequence[Sequence[Instruction]], stored: Container[object] | None = None
) -> list[tuple[Instruction, ...]]:
    """``blocks`` without instructions that have no effect and whose result nothing reads.

    Stores to other buffers than ``stored`` have no effect; None keeps all. ``indirect`` checks its
    operand, so it is kept even if no address depends on it.
    """
    read: set[str] = set()
    live: list[tuple[Instruction, ...]] = []
    for steps in reversed(blocks):
        kept = []
        for step in reversed(steps):
            is_store = step.op == "store" and (stored is None or step.args[0] in stored)
            if is_store or step.op == "indirect" or step.result in read:
                kept.append(step)
                read.update(step.reads)
        live.append(tuple(reversed(kept)))
    return live[::-1]


def with_blocks(
    bodies: Sequence[Body], blocks: Sequence[Sequence[Instruction]]
) -> tuple[Body, ...]:
    """``bodies`` with other instructions, without those that have none."""
    pairs = zip(bodies, blocks, strict=True)
    return tuple(Body(body.inner, tuple(block)) for body, block in pairs if block)
