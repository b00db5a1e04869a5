"""How an index changes along one iteration symbol, and what an instruction depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import sympy
import torch
from loopir import Instruction, Kernel, definitions


def as_expr(arg: object) -> sympy.Expr:
    """An operand as an index expression; raises TypeError for anything else."""
    expr = sympy.sympify(arg)
    if not isinstance(expr, sympy.Expr):
        raise TypeError(f"not an index expression: {arg!r}")
    return expr


def stride_along(expr: sympy.Expr, axis: sympy.Symbol) -> sympy.Expr | None:
    """The constant step of ``expr`` per step of ``axis`` (0 if independent); None when the step
    varies.
    """
    if axis not in expr.free_symbols:
        return sympy.Integer(0)
    step = sympy.expand(expr.xreplace({axis: axis + 1}) - expr)
    if step.is_Integer:
        return step
    return None if axis in step.free_symbols or not _is_linear(expr, axis) else step


def _is_linear(expr: sympy.Basic, axis: sympy.Symbol) -> bool:
    """Whether ``axis`` occurs only in sums and products, not in FloorDiv, Mod, Min or Max, whose
    steps vary.
    """
    if axis not in expr.free_symbols or isinstance(expr, sympy.Symbol):
        return True
    if isinstance(expr, sympy.Add | sympy.Mul):
        return all(_is_linear(arg, axis) for arg in expr.args)
    return False


def stored_buffers(kernel: Kernel) -> frozenset[str]:
    """Buffers that the kernel writes."""
    return frozenset(str(step.args[0]) for step in kernel.steps if step.op == "store")


def only_raised(kernel: Kernel) -> frozenset[str]:
    """Bfloat16 values that only casts to float32 use."""
    other = {
        name
        for step in kernel.steps
        if step.op != "cast" or step.dtype is not torch.float32
        for name in step.reads
    }
    return (
        frozenset(
            step.result for step in kernel.steps if step.result and step.dtype is torch.bfloat16
        )
        - other
    )


def index_source(kernel: Kernel, symbol: str) -> Instruction | None:
    """The one load that an indirect symbol's value is computed from; None when there are several,
    or none.
    """
    known = definitions(kernel.steps)
    stack, found = [symbol], set()
    while stack:
        step = known.get(stack.pop())
        if step is not None and step.op == "load":
            found.add(step.result)
        elif step is not None:
            stack += step.reads
    return known[found.pop()] if len(found) == 1 else None


def accessed_once(kernel: Kernel) -> frozenset[str]:
    """Buffers with a single load or store."""
    counts = Counter(str(step.args[0]) for step, _ in accesses(kernel))
    return frozenset(name for name, count in counts.items() if count == 1)


def accesses(kernel: Kernel) -> Iterable[tuple[Instruction, bool]]:
    """Every load and store, and whether its body is an inner one."""
    for body in kernel.bodies:
        for step in body.instructions:
            if step.is_access:
                yield step, body.inner
