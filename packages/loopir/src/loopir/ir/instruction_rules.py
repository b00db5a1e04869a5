"""Rules that replace instructions matching a pattern by other instructions.

A pattern is an expression in Python's syntax. A call is an operation; ``name := call`` also binds
its result. A lower-case name matches any operand; an upper-case name matches any constant and binds
its number. A number matches that constant, a string matches a kind (``reduce('max', x)``). The
operands of a commutative operation match in either order. A name that occurs twice matches the same
operand twice.
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
        args: the operands; a ``Call`` becomes a separate instruction.
        dtype: the dtype of the result; None: the dtype of the replaced instruction.
        name: the preferred name of the result, for calls that are operands.
    """

    op: str
    args: tuple[Call | Operand, ...]
    dtype: torch.dtype | None = None
    name: str = ""


def call(op: str, *args: Call | Operand, dtype: torch.dtype | None = None, name: str = "") -> Call:
    """Creates a :class:`Call`, with its operands as separate arguments."""
    return Call(op, args, dtype, name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that replaces instructions matching a pattern.

    ``replacement(facts, step, **match)`` returns the new computation of ``step``'s result, or None
    to keep the step.
    """

    pattern: ast.Call
    replacement: Callable[..., Call | None]

    @property
    def op(self) -> str:
        """The operation of the instructions that the rule replaces."""
        return _operation(self.pattern)


def rule(pattern: str) -> Callable[[Callable[..., Call | None]], Rule]:
    """A decorator that turns a function that builds replacements into a rule for ``pattern``."""
    return lambda replacement: Rule(parse_pattern(pattern), replacement)


def parse_pattern(text: str) -> ast.Call:
    """Parses a pattern. Raises ValueError if it isn't a call of an operation."""
    parsed = ast.parse(text, mode="eval").body
    calls = [node.func for node in ast.walk(parsed) if isinstance(node, ast.Call)]
    if not isinstance(parsed, ast.Call) or not all(isinstance(f, ast.Name) for f in calls):
        raise ValueError(f"pattern {text!r} is no call of an operation: write op(x, y)")
    return parsed


def matches(pattern: ast.Call, step: Instruction, known: Definitions) -> Iterator[Match]:
    """The bindings for each way in which ``pattern`` matches ``step``; ``known`` are the steps
    before it.
    """
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
    """Converts ``root`` to instructions; the last one computes ``result``.

    Args:
        root: the computation.
        result: the name of its value.
        dtype: the dtype of calls that state none.
        names: the names in use; new ones are added.
        made: values by their computation, so that equal computations are done once.
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
    """Applies ``rules`` to ``blocks``; the first rule that applies to a step replaces it.

    Replacements are matched again. Later blocks can read the values of earlier ones.
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
        self.made.clear()  # the next body can't read an inner body's values
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
    """Removes instructions that have no effect and whose result is not read.

    Stores to buffers not in ``stored`` count as having no effect; None keeps all stores.
    ``indirect`` checks its operand, so it is kept even if no address depends on it.
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
    """``bodies`` with their instructions replaced by ``blocks``; bodies without instructions are
    removed.
    """
    pairs = zip(bodies, blocks, strict=True)
    return tuple(Body(body.inner, tuple(block)) for body, block in pairs if block)
