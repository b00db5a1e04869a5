"""How an index moves along one iteration symbol, and what an instruction depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import sympy
import torch
from loopir import Instruction, Kernel, Value


def as_expr(arg: object) -> sympy.Expr:
    """An operand as an index expression; raises TypeError for anything else."""
    expr = sympy.sympify(arg)
    if not isinstance(expr, sympy.Expr):
        raise TypeError(f"not an index expression: {arg!r}")
    return expr


def symbol_names(expr: sympy.Expr) -> list[str]:
    """Names of the symbols in an expression."""
    return [symbol.name for symbol in expr.free_symbols if isinstance(symbol, sympy.Symbol)]


def stride_along(expr: sympy.Expr, axis: sympy.Symbol) -> sympy.Expr | None:
    """The constant step of ``expr`` per step of ``axis`` (0 if independent); None when the step varies."""
    if axis not in expr.free_symbols:
        return sympy.Integer(0)
    step = sympy.expand(expr.xreplace({axis: axis + 1}) - expr)
    if step.is_Integer:
        return step
    return None if axis in step.free_symbols or not _is_linear(expr, axis) else step


def _is_linear(expr: sympy.Basic, axis: sympy.Symbol) -> bool:
    """Whether ``axis`` occurs only in sums and products (FloorDiv, Mod, Min and Max bend an index)."""
    if axis not in expr.free_symbols or isinstance(expr, sympy.Symbol):
        return True
    if isinstance(expr, sympy.Add | sympy.Mul):
        return all(_is_linear(arg, axis) for arg in expr.args)
    return False


def index_expressions(instruction: Instruction) -> tuple[sympy.Expr, ...]:
    """The index expressions among the operands, sizes of ``indirect`` included."""
    return tuple(arg for arg in instruction.args if isinstance(arg, sympy.Expr))


def value_names(instruction: Instruction) -> tuple[str, ...]:
    """Names of the values read: operands and the indirect symbols inside index expressions."""
    names = [arg.name for arg in instruction.args if isinstance(arg, Value)]
    for expr in index_expressions(instruction):
        names += symbol_names(expr)
    return tuple(names)


def stored_buffers(kernel: Kernel) -> frozenset[str]:
    """Buffers that the kernel writes."""
    return frozenset(str(step.args[0]) for body in kernel.bodies for step in body.instructions if step.op == "store")


def only_raised(kernel: Kernel) -> frozenset[str]:
    """Bfloat16 values that only casts to float32 use."""
    steps = [step for body in kernel.bodies for step in body.instructions]
    other = {name for step in steps if step.op != "cast" or step.dtype is not torch.float32 for name in value_names(step)}
    return frozenset(step.result for step in steps if step.result and step.dtype is torch.bfloat16) - other


def index_source(kernel: Kernel, symbol: str) -> Instruction | None:
    """The one load that an indirect symbol's value is computed from; None when there are several, or none."""
    known = {step.result: step for body in kernel.bodies for step in body.instructions if step.result}
    stack, found = [symbol], set()
    while stack:
        step = known.get(stack.pop())
        if step is not None and step.op == "load":
            found.add(step.result)
        elif step is not None:
            stack += value_names(step)
    return known[found.pop()] if len(found) == 1 else None


def accessed_once(kernel: Kernel) -> frozenset[str]:
    """Buffers with a single load or store."""
    counts = Counter(str(step.args[0]) for step, _ in accesses(kernel))
    return frozenset(name for name, count in counts.items() if count == 1)


def accesses(kernel: Kernel) -> Iterable[tuple[Instruction, bool]]:
    """Every load and store, with whether its body is an inner one."""
    for body in kernel.bodies:
        for step in body.instructions:
            if step.op in ("load", "store"):
                yield step, body.inner
