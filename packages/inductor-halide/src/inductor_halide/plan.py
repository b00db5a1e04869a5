"""A kernel as Halide stages, and why some kernels have none (UnsupportedKernelError).

A stage computes one Func for all points: a reduction or scan, the values of an outer body that
later bodies read, the stores of a body whose places are affine (they become one Func over the
loops, whose buffers are strided views), or other stores to a buffer (a Func over its elements).
Halide orders stages by what they read from each other, not by memory: ``copied`` holds what would
be overwritten before it is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy
import torch
from loopir import Instruction, Kernel, Range, UnsupportedKernelError, Value, example_value, symbol

DTYPES = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, None,
}  # fmt: skip
UNSUPPORTED = {
    *product(("lgamma", "log2", "fmod", "remainder"), (torch.float32, torch.float64)),
    *product(("erf", "expm1", "log1p"), (torch.float64,)),
}
STAGED = ("reduce", "scan", "store")
LIMIT = 2**31 - 1  # Halide's coordinates
GUESS = 64  # for sizes without an example value


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


@dataclass(frozen=True, slots=True)
class Stage:
    """One Func, by instructions of a body. ``needed`` has those that compute the operands of each
    step, in order; ``after`` has the stages that are read.
    """

    kind: str
    body: int
    steps: list[Instruction]
    needed: list[list[Instruction]]
    after: set[int]

    @property
    def results(self) -> list[str]:
        """What is computed: values, or stored buffers."""
        return list(dict.fromkeys(str(step.result or step.args[0]) for step in self.steps))


class Plan:
    """The stages of a kernel in order, the views of its affine stores by buffer, and (input,
    output) pairs of buffers: if they are one memory, the pipeline needs a copy of the input.

    In ``bodies``, loads of what the kernel stored are instructions "stored(value, mask, other)",
    whose value may be the buffer.
    """

    def __init__(self, kernel: Kernel) -> None:
        """Raises UnsupportedKernelError with what Halide can't say."""
        self.kernel = kernel
        self.stages: list[Stage] = []
        self.views: dict[str, View] = {}
        for step in kernel.steps:
            if step.dtype not in DTYPES or not DTYPES.issuperset(kernel.dtypes.values()):
                raise self.refusal(f"no {step.dtype}")
            if (step.op, step.dtype) in UNSUPPORTED:
                raise self.refusal(f"no {step.op} of {step.dtype}".replace("torch.", ""))
        self._find_views()
        self.bodies = self._forward_loads()
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
        read = {step.args[0] for body in self.bodies for step in body if step.op == "load"}
        return [buffer.name for buffer in self.kernel.buffers if buffer.name in read]

    def example(self, expr: sympy.Expr) -> int:
        """The value of a size in the example call, at least 1."""
        return max(1, example_value(expr, dict(self.kernel.hints), GUESS))

    def loops(self, body: int) -> tuple[Range, ...]:
        """The loops around a body, outermost first."""
        inner = self.kernel.bodies[body].inner
        return (*self.kernel.ranges, *(self.kernel.reduction if inner else ()))

    def _find_views(self) -> None:
        """The affine stores; a buffer stored to in several steps has no view."""
        stores = Counter(step.args[0] for step in self.kernel.steps if step.op == "store")
        for number, body in enumerate(self.kernel.bodies):
            loops = self.loops(number)[::-1]
            for step in (s for s in body.instructions if s.op == "store" and not s.is_add):
                name, index = str(step.args[0]), sympy.expand(step.args[1])
                strides: list[Any] = [index.coeff(item.symbol) for item in loops]
                products = (item.symbol * by for item, by in zip(loops, strides, strict=True))
                rest = sympy.expand(index - sum(products))
                affine = all(s.free_symbols <= {*self.kernel.sizes} for s in (rest, *strides))
                if stores[name] > 1 or not affine:
                    continue
                if any(s == 0 and e.extent != 1 for s, e in zip(strides, loops, strict=True)):
                    raise self.refusal(f"points of a loop store to one place of {name}")
                self.views[name] = View(tuple(e.extent for e in loops), tuple(strides), rest)

    def _forward_loads(self) -> list[list[Instruction]]:
        stored: dict[object, tuple[int, Instruction]] = {}
        bodies: list[list[Instruction]] = []
        for number, body in enumerate(self.kernel.bodies):
            bodies.append([])
            for step in body.instructions:
                name, *args = step.args
                if step.op == "store":
                    stored[name] = number, step
                elif step.op == "load" and name in stored:
                    place, store = stored[name]
                    seen = set(self.loops(place)) <= set(self.loops(number))
                    if store.args[1] != args[0] or name not in self.views or not seen:
                        raise self.refusal(f"a load of {name} at another place than its store")
                    value = store.args[2] if place == number else Value(str(name))
                    step = Instruction(step.result, "stored", (value, *args[1:]), step.dtype)
                bodies[-1].append(step)
        return bodies

    def _add_stages(self, number: int) -> None:
        steps = self.bodies[number]
        stores = [step for step in steps if step.op == "store"]
        for step in (step for step in steps if step.op in ("scan", "reduce")):
            self._add(step.op, number, [step])
        if not self.kernel.bodies[number].inner:
            later = {name for body in self.bodies[number + 1 :] for s in body for name in s.reads}
            self._add("values", number, [step for step in steps if step.result in later])
        affine = [step for step in stores if step.args[0] in self.views]
        self._add("store", number, affine)
        for name in dict.fromkeys(step.args[0] for step in stores if step not in affine):
            if any(name in stage.results for stage in self.stages):
                raise self.refusal(f"stores to {name} in several bodies")
            self._add("scatter", number, [step for step in stores if step.args[0] == name])

    def _add(self, kind: str, body: int, steps: list[Instruction]) -> None:
        """Adds a stage, if it has steps. Halide stores results in order: what others of the stage
        load goes last.
        """
        if kind == "store":
            loads = [{at.args[0] for at in self._needed(body, s) if at.op == "load"} for s in steps]
            steps = sorted(steps, key=lambda step: sum(step.args[0] in load for load in loads))
        needed = [self._needed(body, step) for step in steps]
        used = [*steps, *(step for each in needed for step in each)]
        read = {name for step in used for name in step.reads} - {step.result for step in used}
        after = {n for n, stage in enumerate(self.stages) if not read.isdisjoint(stage.results)}
        after = after.union(*(self.stages[n].after for n in after))
        if steps:
            self.stages.append(Stage(kind, body, steps, needed, after))

    def _needed(self, body: int, wanted: Instruction) -> list[Instruction]:
        """The instructions of a body that an instruction is computed by, in order."""
        names, found = {wanted.result, *wanted.reads}, []
        for step in reversed(self.bodies[body]):
            if step.result in names and step.op not in STAGED:
                found.append(step)
                names |= {*step.reads}
        return found[::-1]

    def _find_copied(self) -> set[tuple[str, str]]:
        """A stage reads before another stores if the other is after it, and a result before itself
        and later ones of its stage do at the same place.
        """
        roles = {buffer.name: buffer.role for buffer in self.kernel.buffers}
        writers = [stage for stage in self.stages if stage.kind in ("store", "scatter")]
        found = set()
        for (n, reader), writer in product(enumerate(self.stages), writers):
            pairs = product(enumerate(reader.needed), enumerate(writer.steps))
            for (r, needed), (w, store) in () if n in writer.after else pairs:
                stored, index = str(store.args[0]), store.args[1]
                in_place = reader is writer and r <= w and stored in self.views
                for step in (step for step in needed if step.op == "load"):
                    buffer = str(step.args[0])
                    shared = buffer == stored or (roles[buffer], roles[stored]) == ("in", "out")
                    if shared and not (in_place and step.args[1] == index):
                        found.add((buffer, stored))
        return found

    def check_magnitudes(self, sizes: Sequence[int]) -> None:
        """Raises UnsupportedKernelError if an index can have more than 31 bits on the way."""
        kernel, limits = self.kernel, dict(zip(self.kernel.sizes, sizes, strict=True))
        loops = (*kernel.ranges, *kernel.reduction)
        limits |= {item.symbol: max(example_value(item.extent, limits, 0) - 1, 0) for item in loops}
        for step in (step for step in kernel.steps if step.op == "indirect"):
            limits[symbol(str(step.result))] = example_value(step.args[1], limits, 0)  # type: ignore[arg-type]
        exprs = [item.extent for item in loops] + [buffer.numel for buffer in kernel.buffers]
        for expr in (*exprs, *(expr for step in kernel.steps for expr in step.expressions)):
            if magnitude(expr, limits) > LIMIT:
                raise self.refusal(f"an index of more than 31 bits: {expr}")


def magnitude(expr: sympy.Basic, limits: Mapping[sympy.Symbol, int]) -> int:
    """An upper bound of |expr| and of everything computed on the way."""
    if not expr.args:
        return limits[expr] if isinstance(expr, sympy.Symbol) else abs(int(expr))  # type: ignore[call-overload]
    parts = [magnitude(part, limits) for part in expr.args]
    if isinstance(expr, sympy.Add):
        return sum(parts)
    if isinstance(expr, sympy.Pow):
        return max(parts[0], 1) ** parts[1]
    return math.prod(max(part, 1) for part in parts) if expr.is_Mul else max(parts)
