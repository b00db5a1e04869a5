"""A kernel as Halide stages, and why some kernels have none (UnsupportedKernelError).

A stage computes one Func for all points: the reductions of a body, the values of an outer body that
later bodies read, a scan, the stores of a body whose places are affine (they become one Func over
the loops, whose buffers are strided views), or other stores to a buffer (a Func over its elements).
Halide orders stages by what they read from each other, not by memory: ``copied`` holds what would
be overwritten before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from loopir import Instruction, Kernel, Range, UnsupportedKernelError, symbol

DTYPES = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, None,
}  # fmt: skip
UNSUPPORTED = {
    "lgamma", "expm1", "log1p", "log2", ("erf", torch.float64), ("fmod", torch.float32),
    ("fmod", torch.float64), ("remainder", torch.float32), ("remainder", torch.float64),
}  # fmt: skip
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
    def unit(self) -> int:
        """The loop along which points are neighbours, else -1."""
        return self.strides.index(sympy.Integer(1)) if sympy.Integer(1) in self.strides else -1


@dataclass(slots=True)
class Stage:
    """One Func. ``results`` names what it computes: values, or stored buffers, by ``steps`` (not
    for values). ``memory`` has what each result reads from before the kernel, as buffer and index;
    ``after`` has the stages that it reads.
    """

    kind: str
    body: int
    results: list[str]
    steps: list[Instruction]
    memory: dict[str, set[tuple[object, object]]] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)


class Plan:
    """The stages of a kernel in order, the views of its affine stores by buffer, for loads of what
    the kernel stored the value or buffer that has it, and (input, output) pairs of buffers: if they
    are one memory, the pipeline needs a copy of the input.
    """

    def __init__(self, kernel: Kernel) -> None:
        """Raises UnsupportedKernelError with what Halide can't say."""
        self.kernel = kernel
        self.stages: list[Stage] = []
        self.views: dict[str, View] = {}
        self.forwarded: dict[str, str] = {}
        for step in kernel.steps:
            if step.dtype not in DTYPES or not DTYPES.issuperset(kernel.dtypes.values()):
                raise self.refusal(f"no {step.dtype}")
            if step.op in UNSUPPORTED or (step.op, step.dtype) in UNSUPPORTED:
                raise self.refusal(f"no {step.op} of {step.dtype}".replace("torch.", ""))
        self._find_views()
        self._forward_loads()
        for number in range(len(kernel.bodies)):
            self._add_stages(number)
        self.copied = self._find_copied()
        if not kernel.sizes:
            self.check_magnitudes(())

    def refusal(self, reason: str) -> UnsupportedKernelError:
        """The error for a kernel that has no pipeline."""
        return UnsupportedKernelError(f"{self.kernel.name}: {reason}")

    @property
    def inputs(self) -> list[str]:
        """The buffers of which the kernel reads elements from before it."""
        loads = (step for step in self.kernel.steps if step.op == "load")
        read = {step.args[0] for step in loads if step.result not in self.forwarded}
        return [buffer.name for buffer in self.kernel.buffers if buffer.name in read]

    def loops(self, body: int) -> tuple[Range, ...]:
        """The loops around a body, outermost first."""
        inner = self.kernel.bodies[body].inner
        return (*self.kernel.ranges, *(self.kernel.reduction if inner else ()))

    def _find_views(self) -> None:
        """The affine stores; a buffer stored to in several steps has no view."""
        seen: set[object] = set()
        for number, body in enumerate(self.kernel.bodies):
            for step in (step for step in body.instructions if step.op == "store"):
                name, rest, strides = str(step.args[0]), sympy.expand(step.args[1]), []
                loops = self.loops(number)[::-1]
                for item in loops:
                    strides.append(rest.coeff(item.symbol, 1))
                    rest = sympy.expand(rest - strides[-1] * item.symbol)
                affine = all(s.free_symbols <= {*self.kernel.sizes} for s in (rest, *strides))
                if name in seen or step.is_add or not affine:
                    self.views.pop(name, None)
                elif any(s == 0 and e.extent != 1 for s, e in zip(strides, loops)):
                    raise self.refusal(f"points of a loop store to one place of {name}")
                else:
                    extents = tuple(item.extent for item in loops)
                    self.views[name] = View(extents, tuple(strides), rest)
                seen.add(name)

    def _forward_loads(self) -> None:
        """Finds the values of loads that read what the kernel stored."""
        stored: dict[object, tuple[int, Instruction]] = {}
        for number, body in enumerate(self.kernel.bodies):
            for step in body.instructions:
                name = step.args[0]
                if step.op == "store":
                    stored[name] = number, step
                elif step.op == "load" and name in stored:
                    place, store = stored[name]
                    seen = set(self.loops(place)) <= set(self.loops(number))
                    if store.args[1] != step.args[1] or name not in self.views or not seen:
                        raise self.refusal(f"a load of {name} at another place than its store")
                    self.forwarded[str(step.result)] = str(
                        store.args[2] if place == number else name
                    )

    def needed(self, body: int, operands: Iterable[str]) -> list[Instruction]:
        """The instructions of a body that ``operands`` are computed from, in order."""
        wanted, found = set(operands), []
        for step in reversed(self.kernel.bodies[body].instructions):
            if step.result in wanted and step.op not in ("reduce", "scan", "store"):
                found.append(step)
                wanted |= {*step.reads, self.forwarded.get(str(step.result), "")}
        return found[::-1]

    def _add_stages(self, number: int) -> None:
        body, following = self.kernel.bodies[number], self.kernel.bodies[number + 1 :]
        by_op = {
            op: [step for step in body.instructions if step.op == op]
            for op in ("scan", "reduce", "store")
        }
        for step in by_op["scan"]:
            self._add(Stage("scan", number, [str(step.result)], [step]))
        self._add(
            Stage("reduce", number, [str(s.result) for s in by_op["reduce"]], by_op["reduce"])
        )
        if not body.inner:
            later = {name for b in following for step in b.instructions for name in step.reads}
            names = [str(s.result) for s in body.instructions if s.result in later]
            self._add(Stage("values", number, names, []))
        affine = [step for step in by_op["store"] if step.args[0] in self.views]
        self._add(Stage("store", number, [str(step.args[0]) for step in affine], affine))
        for name in dict.fromkeys(str(s.args[0]) for s in by_op["store"] if s not in affine):
            if any(name in stage.results for stage in self.stages):
                raise self.refusal(f"stores to {name} in several bodies")
            chosen = [step for step in by_op["store"] if step.args[0] == name]
            self._add(Stage("scatter", number, [name], chosen))

    def _add(self, stage: Stage) -> None:
        """Adds a stage that has results, with what it reads."""
        producers = {name: n for n, other in enumerate(self.stages) for name in other.results}
        for place, name in enumerate(stage.results):
            steps = stage.steps if stage.kind == "scatter" else stage.steps[place : place + 1]
            operands = {read for step in steps for read in step.reads} or {name}
            memory = stage.memory.setdefault(name, set())
            for step in self.needed(stage.body, operands):
                operands |= {*step.reads, self.forwarded.get(str(step.result), "")}
                if step.op == "load" and step.result not in self.forwarded:
                    memory.add((step.args[0], step.args[1]))
            stage.after |= {producers[read] for read in operands if read in producers}
        for number in list(stage.after):
            stage.after |= self.stages[number].after
        if stage.kind == "store":  # Halide stores results in order: what they read goes last
            waiting = list(stage.results)
            stage.results = []
            while waiting:
                free = [r for r in waiting if not self._is_read(stage, waiting, r)] or waiting
                stage.results.append(free[0])
                waiting.remove(free[0])
            stage.steps.sort(key=lambda step: stage.results.index(str(step.args[0])))
        if stage.results:
            self.stages.append(stage)

    def _is_read(self, stage: Stage, results: list[str], name: str) -> bool:
        read = {buffer for other in results if other != name for buffer, _ in stage.memory[other]}
        return name in read

    def _find_copied(self) -> set[tuple[str, str]]:
        """A stage reads before another stores if the other is after it, and a result before itself
        and later ones of its stage do at the same place.
        """
        roles = {buffer.name: buffer.role for buffer in self.kernel.buffers}
        found = set()
        for n, stage in enumerate(self.stages):
            for writer in (s for s in self.stages if s.kind in ("store", "scatter")):
                for place, stored in enumerate(writer.results):
                    index = writer.steps[place].args[1]
                    late = stage.results[:] if stage is not writer else stage.results[place + 1 :]
                    for result in () if n in writer.after else stage.results:
                        for buffer, at in stage.memory[result]:
                            twins = (roles[str(buffer)], roles[stored]) == ("in", "out")
                            wrong = result in late or at != index or writer.kind == "scatter"
                            if wrong and (buffer == stored or twins):
                                found.add((str(buffer), stored))
        return found

    def check_magnitudes(self, sizes: Sequence[int]) -> None:
        """Raises UnsupportedKernelError if an index can have more than 31 bits on the way."""
        kernel = self.kernel
        known = {size: sympy.Integer(n) for size, n in zip(kernel.sizes, sizes, strict=True)}
        limits = {size: int(n) for size, n in known.items()}
        loops = (*kernel.ranges, *kernel.reduction)
        for item in loops:
            limits[item.symbol] = max(int(item.extent.xreplace(known)) - 1, 0)  # type: ignore[arg-type]
        exprs = [item.extent for item in loops] + [buffer.numel for buffer in kernel.buffers]
        for step in kernel.steps:
            if step.op == "indirect":
                limits[symbol(str(step.result))] = int(step.args[1].xreplace(known))  # type: ignore[union-attr, arg-type]
            exprs += step.expressions
        for expr in exprs:
            if magnitude(expr, limits) > LIMIT:
                raise self.refusal(f"an index of more than 31 bits: {expr}")


def magnitude(expr: sympy.Basic, limits: dict[sympy.Symbol, int]) -> int:
    """An upper bound of |expr| and of everything computed on the way."""
    if isinstance(expr, sympy.Symbol):
        return limits[expr]
    if isinstance(expr, sympy.Integer):
        return abs(int(expr))
    parts = [magnitude(part, limits) for part in expr.args]
    if isinstance(expr, sympy.Add):
        return sum(parts)
    if isinstance(expr, sympy.Pow):
        return max(parts[0], 1) ** parts[1]
    return math.prod(max(part, 1) for part in parts) if expr.is_Mul else max(parts)
