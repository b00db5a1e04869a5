"""A kernel as Halide stages, and why some kernels have none (UnsupportedKernelError).

A stage computes one Func for all points: the reductions of a body, the values of an outer body that
later bodies read, a scan, the stores of a body whose places are affine (they become one Func over
the loops, whose buffers are strided views), or other stores to a buffer (a Func over its elements).
Halide orders stages by what they read from each other, not by memory; ``_check_order`` refuses
kernels where that would not be enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from loopir import FloorDiv, Instruction, Kernel, Mod, Range, UnsupportedKernelError, Value

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
WITHOUT_FLOAT64 = ("erf", "fmod", "remainder")
LIMIT = 2**31 - 1  # Halide's coordinates


@dataclass(frozen=True, slots=True)
class View:
    """Where a store's points lie: per loop, innermost first, an extent and a stride, in elements
    after ``offset``.
    """

    extents: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr

    @property
    def unit(self) -> int | None:
        """The loop along which points are neighbours."""
        return self.strides.index(sympy.Integer(1)) if sympy.Integer(1) in self.strides else None


@dataclass(slots=True)
class Stage:
    """One Func. ``results`` names what it computes: values, or stored buffers.

    ``steps`` are the reductions, scans or stores; ``memory`` the buffers whose elements from before
    the kernel it reads; ``after`` the stages that it reads.
    """

    kind: str
    body: int
    results: tuple[str, ...]
    steps: tuple[Instruction, ...] = ()
    memory: set[str] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Plan:
    """The stages of a kernel in order, the views of its affine stores by buffer, and for loads of
    what the kernel stored before the value or stage that has it.
    """

    kernel: Kernel
    stages: list[Stage] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)
    forwarded: dict[str, str] = field(default_factory=dict)
    copied: set[tuple[str, str]] = field(default_factory=set)

    @property
    def inputs(self) -> list[str]:
        """The buffers of which the kernel reads elements from before it."""
        read = {str(s.args[0]) for s in self.kernel.steps if s.op == "load"
                and str(s.result) not in self.forwarded}  # fmt: skip
        return [b.name for b in self.kernel.buffers if b.name in read]

    def loops(self, body: int) -> tuple[Range, ...]:
        """The loops around a body, outermost first."""
        kernel = self.kernel
        return (*kernel.ranges, *(kernel.reduction if kernel.bodies[body].inner else ()))


def plan_kernel(kernel: Kernel) -> Plan:
    """Raises UnsupportedKernelError with what Halide can't say."""
    plan = Plan(kernel)
    for step in kernel.steps:
        _check_step(plan, step)
    _find_views(plan)
    _forward_loads(plan)
    for body in range(len(kernel.bodies)):
        _add_stages(plan, body)
    _check_order(plan)
    if not kernel.sizes:
        check_magnitudes(kernel, ())
    return plan


def refuse(kernel: Kernel, reason: str) -> UnsupportedKernelError:
    """The error for a kernel that has no pipeline."""
    return UnsupportedKernelError(f"{kernel.name}: {reason}")


def _check_step(plan: Plan, step: Instruction) -> None:
    for dtype in {step.dtype, *plan.kernel.dtypes.values()} - {None}:
        if dtype not in DTYPES:
            raise refuse(plan.kernel, f"no {dtype}")
    if step.op == "lgamma":
        raise refuse(plan.kernel, "no lgamma")
    if step.op in WITHOUT_FLOAT64 and step.dtype is torch.float64:
        raise refuse(plan.kernel, f"no {step.op} of float64")


def affine_view(index: sympy.Expr, loops: Sequence[Range]) -> View | None:
    """The view of the points ``index`` takes over ``loops``; None if it is not affine."""
    rest, strides = sympy.expand(index), []
    symbols = {item.symbol for item in loops}
    for item in reversed(loops):
        stride = rest.coeff(item.symbol, 1)
        rest = sympy.expand(rest - stride * item.symbol)
        strides.append(stride)
    if any(part.free_symbols & symbols for part in (rest, *strides)):
        return None
    extents = tuple(item.extent for item in reversed(loops))
    return View(extents, tuple(strides), rest)


def _find_views(plan: Plan) -> None:
    """The affine stores; a buffer stored to in several steps has no view."""
    seen: set[str] = set()
    for number, body in enumerate(plan.kernel.bodies):
        indirect = {step.result for step in body.instructions if step.op == "indirect"}
        for step in body.instructions:
            if step.op != "store":
                continue
            name, index = str(step.args[0]), step.args[1]
            view = affine_view(index, plan.loops(number))  # type: ignore[arg-type]
            known = {s.name for s in index.free_symbols} & indirect  # type: ignore[union-attr]
            if name in seen or step.is_add or view is None or known:
                plan.views.pop(name, None)
            elif any(s == 0 and e != 1 for s, e in zip(view.strides, view.extents, strict=True)):
                raise refuse(plan.kernel, f"points of a loop store to one place of {name}")
            else:
                plan.views[name] = view
            seen.add(name)


def _forward_loads(plan: Plan) -> None:
    """Finds the values of loads that read what the kernel stored."""
    stored: dict[str, tuple[int, Instruction]] = {}
    kernel = plan.kernel
    later = {str(step.args[0]): step for step in kernel.steps if step.op == "store"}
    for number, body in enumerate(kernel.bodies):
        for step in body.instructions:
            if step.op == "store":
                stored[str(step.args[0])] = number, step
            if step.op != "load" or str(step.args[0]) not in later:
                continue
            name = str(step.args[0])
            place, store = stored.get(name, (number, later[name]))
            if store.args[1] != step.args[1] and (name in stored or place == number):
                raise refuse(kernel, f"a load of {name} at another place than its store")
            if name not in stored:
                continue
            if name not in plan.views:
                raise refuse(kernel, f"a load of {name} after a store that has no view")
            if place != number and not set(plan.loops(place)) <= set(plan.loops(number)):
                raise refuse(kernel, f"a load of {name} outside the loops of its store")
            value = store.args[2]
            assert isinstance(value, Value)
            plan.forwarded[str(step.result)] = value.name if place == number else name


def needed_steps(
    body: Sequence[Instruction], operands: Iterable[str], forwarded: dict[str, str]
) -> list[Instruction]:
    """The instructions of a body that ``operands`` are computed from, in order."""
    wanted, found = set(operands), []
    for step in reversed(body):
        if step.result in wanted and step.op not in ("reduce", "scan", "store"):
            found.append(step)
            wanted |= {forwarded[step.result]} if step.result in forwarded else set()
            wanted |= set(step.reads)
    return found[::-1]


def _add_stages(plan: Plan, number: int) -> None:
    kernel = plan.kernel
    body = kernel.bodies[number]
    steps = body.instructions
    for step in steps:
        if step.op == "scan":
            _add(plan, Stage("scan", number, (str(step.result),), (step,)))
    reductions = tuple(step for step in steps if step.op == "reduce")
    if reductions:
        names = tuple(str(step.result) for step in reductions)
        _add(plan, Stage("reduce", number, names, reductions))
    if not body.inner:
        later = {n for b in kernel.bodies[number + 1 :] for s in b.instructions for n in s.reads}
        names = tuple(s.result for s in steps if s.result in later and s.result is not None)
        if names:
            _add(plan, Stage("values", number, names))
    stores = tuple(step for step in steps if step.op == "store")
    pure = tuple(step for step in stores if str(step.args[0]) in plan.views)
    if pure:
        _add(plan, Stage("store", number, tuple(str(s.args[0]) for s in pure), pure))
    for name in dict.fromkeys(str(s.args[0]) for s in stores if s not in pure):
        if any(name in stage.results for stage in plan.stages):
            raise refuse(kernel, f"stores to {name} in several bodies")
        chosen = tuple(s for s in stores if s.args[0] == name)
        _add(plan, Stage("scatter", number, (name,), chosen))


def _add(plan: Plan, stage: Stage) -> None:
    """Adds a stage with what it reads."""
    body = plan.kernel.bodies[stage.body].instructions
    operands = set(stage.results) if stage.kind == "values" else set()
    for step in stage.steps:
        operands |= set(step.reads)
    own = set(stage.results) if stage.kind == "store" else set()
    steps = needed_steps(body, operands, plan.forwarded)
    producers = {name: n for n, other in enumerate(plan.stages) for name in other.results}
    for step in steps:
        operands |= set(step.reads)
        if step.op == "load" and str(step.result) not in plan.forwarded:
            stage.memory |= {str(step.args[0])} - own
        elif step.op == "load":
            operands.add(plan.forwarded[str(step.result)])
    stage.after = {producers[name] for name in operands if name in producers}
    for number in list(stage.after):
        stage.after |= plan.stages[number].after
    plan.stages.append(stage)


def _check_order(plan: Plan) -> None:
    """Every stage that reads memory of a buffer must be read by the stage that stores to it.

    An input may be the memory of an output (C4.8), which only a launch can tell: pairs where that
    would go wrong are in ``plan.copied``.
    """
    roles = {buffer.name: buffer.role for buffer in plan.kernel.buffers}
    writers = {
        name: n
        for n, stage in enumerate(plan.stages)
        for name in stage.results
        if stage.kind in ("store", "scatter")
    }
    for number, stage in enumerate(plan.stages):
        for name in stage.memory:
            for stored, writer in writers.items():
                single = number == writer and len(stage.results) == 1 and stage.kind == "store"
                if number in plan.stages[writer].after or (single and name != stored):
                    continue
                if name == stored:
                    raise refuse(plan.kernel, f"{name} is read in a loop that its store isn't after")
                if roles[name] == "in" and roles[stored] == "out":
                    plan.copied.add((name, stored))


def check_magnitudes(kernel: Kernel, sizes: Sequence[int]) -> None:
    """Raises UnsupportedKernelError if an index can have more than 31 bits on the way."""
    known = {symbol: int(value) for symbol, value in zip(kernel.sizes, sizes, strict=True)}
    limits: dict[sympy.Symbol, int] = dict(known)
    for item in (*kernel.ranges, *kernel.reduction):
        limits[item.symbol] = max(int(item.extent.xreplace(known)) - 1, 0)  # type: ignore[arg-type]
    exprs = [buffer.numel for buffer in kernel.buffers]
    exprs += [item.extent for item in (*kernel.ranges, *kernel.reduction)]
    for step in kernel.steps:
        if step.op == "indirect":
            size = step.args[1].xreplace(known)  # type: ignore[union-attr]
            limits[sympy.Symbol(str(step.result), integer=True, nonnegative=True)] = int(size)
        exprs += step.expressions
    for expr in exprs:
        if magnitude(expr, limits) > LIMIT:
            raise refuse(kernel, f"an index of more than 31 bits: {expr}")


def magnitude(expr: sympy.Expr, limits: dict[sympy.Symbol, int]) -> int:
    """An upper bound of |expr| and of everything computed on the way."""
    if isinstance(expr, sympy.Symbol):
        return limits[expr]
    if isinstance(expr, sympy.Integer):
        return abs(int(expr))
    parts = [magnitude(part, limits) for part in expr.args]  # type: ignore[arg-type]
    if isinstance(expr, sympy.Add):
        return sum(parts)
    if isinstance(expr, sympy.Mul | sympy.Pow):
        result = 1
        for part in parts if isinstance(expr, sympy.Mul) else parts[:1] * parts[1]:
            result *= max(part, 1)
        return result
    assert isinstance(expr, FloorDiv | Mod | sympy.Min | sympy.Max)
    return max(parts)
