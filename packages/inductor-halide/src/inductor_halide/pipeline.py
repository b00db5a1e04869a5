"""A plan's stages as Halide Funcs.

Instructions are evaluated at a point of the loops, whose coordinates are variables for stores and
values, and those of a reduction domain for reductions, scans and scatters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import halide as hl
import sympy
import torch
from loopir import FloorDiv, Instruction, Mod, Value, flat_position

from . import functions
from .functions import TYPES, expression
from .plan import Plan, Stage
from .reducers import State, reducer

INDEX_OPERATIONS: dict[type[sympy.Basic], Callable[[hl.Expr, hl.Expr], hl.Expr]] = {
    sympy.Add: operator.add, sympy.Mul: operator.mul, sympy.Min: hl.min, sympy.Max: hl.max,
    FloorDiv: operator.floordiv, Mod: operator.mod,
}  # fmt: skip


@dataclass(eq=False)
class BuiltStage:
    """A Func over loops, innermost first; ``finish`` makes results of its elements at a point.
    ``reduced`` are the loops of its update, and ``partial`` is the Func of its lanes' results, if
    there is one.
    """

    stage: Stage
    func: hl.Func
    finish: Callable[[State], list[hl.Expr]]
    reduced: list[hl.RVar] = field(default_factory=list)
    partial: hl.Func | None = None


class Point(dict[str, hl.Expr]):
    """Sizes, coordinates and values by name; those of other stages are read from their Funcs."""

    def __init__(self, pipeline: Pipeline, coordinates: Mapping[str, object]) -> None:
        named = {**pipeline.sizes, **coordinates}
        super().__init__((name, expression(value)) for name, value in named.items())
        self.stages = pipeline.stages

    def __missing__(self, name: str) -> hl.Expr:
        built = next(built for built in self.stages if name in built.stage.results)
        state = _elements(built.func, [self[var.name()] for var in built.func.args()])
        self[name] = built.finish(state)[built.stage.results.index(name)]
        return self[name]

    def index(self, expr: Any) -> hl.Expr:
        """An index expression on Halide's int32, whose division rounds down for positive
        divisors.
        """
        if isinstance(expr, sympy.Symbol):
            return hl.cast(hl.Int(32), self[expr.name])
        if isinstance(expr, sympy.Integer):
            return hl.Expr(int(expr))
        if isinstance(expr, sympy.Pow):
            return math.prod([self.index(expr.base)] * int(expr.exp), start=hl.Expr(1))
        return reduce(INDEX_OPERATIONS[expr.func], map(self.index, expr.args))


class Pipeline:
    """``vector`` names the loop along which ``lanes`` elements are computed together."""

    def __init__(self, plan: Plan, lanes: int) -> None:
        kernel = plan.kernel
        self.plan, self.lanes = plan, lanes
        self.vector = None if kernel.vector_axis is None else kernel.vector_axis.name
        self.dtypes = {str(step.result): step.dtype for step in kernel.steps} | kernel.dtypes
        self.stages: list[BuiltStage] = []
        self.sizes = {size.name: hl.Param(hl.Int(32), size.name) for size in kernel.sizes}
        self.images: dict[str, hl.ImageParam] = {}
        for name in plan.inputs:
            self.images[name] = hl.ImageParam(storage(self.dtypes[name]), 1, f"{name}_memory")
            self.images[name].dim(0).set_min(0)
        whole = Point(self, {})
        self.outer, self.inner = (
            {item.symbol.name: whole.index(item.extent) for item in loops}
            for loops in (kernel.ranges, kernel.reduction)
        )
        for stage in plan.stages:
            self.stages.append(getattr(self, f"_{stage.kind}")(stage))

    @property
    def outputs(self) -> list[BuiltStage]:
        """The stages that store."""
        return [built for built in self.stages if built.stage.kind in ("store", "scatter")]

    def _loops(self, stage: Stage) -> dict[str, hl.Expr]:
        inner = self.plan.kernel.bodies[stage.body].inner
        return {**self.outer, **(self.inner if inner else {})}

    # Instructions

    def evaluate(self, stage: Stage, coordinates: Mapping[str, object]) -> Point:
        """What a stage's steps are computed from."""
        point = Point(self, coordinates)
        for step in (step for needed in stage.needed for step in needed):
            if step.result not in point:
                point[str(step.result)] = self._value(step, point)
        return point

    def _value(self, step: Instruction, point: Point) -> hl.Expr:
        op, args, dtype = step.op, step.args, step.dtype
        values = [point[arg.name] for arg in args if isinstance(arg, Value)]
        if op == "load":
            return self._load(step, point, *values)
        if op == "stored":
            other = (functions.constant(args[2], dtype) for _ in values[1:])
            return hl.select(values[1], values[0], *other) if values[1:] else values[0]
        if op == "constant":
            return functions.constant(args[0], dtype)
        if op == "index_expr":
            return functions.cast(hl.cast(hl.Int(64), point.index(args[0])), torch.int64, dtype)
        if op == "indirect":
            value = hl.cast(hl.Int(64), values[0])
            inside = (value >= 0) & (value < hl.cast(hl.Int(64), point.index(args[1])))
            return hl.require(inside, value, hl.Expr(functions.OUT_OF_RANGE))
        if op in ("cast", "bitcast"):
            return getattr(functions, op)(*values, self.dtypes[str(args[0])], dtype)
        return getattr(functions, f"{op}_" if op in ("and", "or", "not") else op)(*values)

    def _load(self, step: Instruction, point: Point, *mask: hl.Expr) -> hl.Expr:
        """An element from before the kernel."""
        name, index, _, other = step.args
        image, place = self.images[str(name)], point.index(index)
        last = image.dim(0).extent() - 1
        if mask:
            place = hl.clamp(place, 0, hl.max(last, 0))
        value = loaded(image[hl.unsafe_promise_clamped(place, 0, last)], step.dtype)
        return hl.select(*mask, value, functions.constant(other, step.dtype)) if mask else value

    # Stages

    def _reduce(self, stage: Stage) -> BuiltStage:
        """By lanes, each takes the elements whose position it is, modulo their number; then come
        the lanes together, and the elements that are left.
        """
        (step,), outer, whole = stage.steps, _variables(self.outer), _domain(self.inner)
        args = [*outer.values()]
        kind, name = map(str, step.args)
        reduction, func = reducer(kind, step.dtype, self.dtypes[name]), hl.Func(step.result)
        _define(func, args, reduction.start)
        built = BuiltStage(stage, func, reduction.finish, [*whole.values()])
        position = flat_position(self.plan.kernel.reduction)

        def accumulate(into: hl.Func, places: list[hl.Var], domain: Mapping[str, object]) -> None:
            point = self.evaluate(stage, {**outer, **domain})
            element = reduction.element(_naming(point[name], domain), point.index(position))
            _define(into, places, reduction.combine(_elements(into, places), element))

        if self.vector is None or self.vector != [*self.inner][-1]:
            accumulate(func, args, whole)
            return built
        extent, lane = self.inner[self.vector], hl.Var("lane")
        built.partial = partial = hl.Func(f"{step.result}_lanes")
        _define(partial, [lane, *args], reduction.start)
        blocks = _domain({**self.inner, self.vector: extent / self.lanes})
        built.reduced = [*blocks.values()]
        mine = expression(blocks[self.vector]) * self.lanes + lane
        accumulate(partial, [lane, *args], {**blocks, self.vector: mine})
        lanes = hl.RDom([hl.Range(0, self.lanes)])
        other = _elements(partial, [lanes[0], *args])
        _define(func, args, reduction.combine(_elements(func, args), other))
        rest = _domain({**self.inner, self.vector: extent % self.lanes})
        left = extent / self.lanes * self.lanes + rest[self.vector]
        accumulate(func, args, {**rest, self.vector: left})
        return built

    def _scan(self, stage: Stage) -> BuiltStage:
        """An inclusive prefix over the reduction; its Func starts one place before."""
        (step,), outer, domain = stage.steps, _variables(self.outer), _domain(self.inner)
        kind, name = map(str, step.args)
        ((loop, place),) = domain.items()
        reduction, func = reducer(kind, step.dtype, step.dtype), hl.Func(step.result)
        _define(func, [hl.Var(loop), *outer.values()], reduction.start)
        before = _elements(func, [expression(place) - 1, *outer.values()])
        point = self.evaluate(stage, {**outer, **domain})
        element = reduction.element(point[name], point[loop])
        _define(func, [place, *outer.values()], reduction.combine(before, element))
        return BuiltStage(stage, func, reduction.finish, [place])

    def _values(self, stage: Stage) -> BuiltStage:
        """Values of an outer body that later bodies read, or that are stored."""
        loops, func = _variables(self._loops(stage)), hl.Func("_".join(stage.results))
        point, dtypes = self.evaluate(stage, loops), [self.dtypes[n] for n in stage.results]
        values = [point[step.result or str(step.args[2])] for step in stage.steps]
        stored = [hl.cast(storage(d), v) for d, v in zip(dtypes, values, strict=True)]
        _define(func, [*loops.values()], stored)
        finish = lambda state: list(map(loaded, state, dtypes))  # noqa: E731
        return BuiltStage(stage, func, finish)

    def _store(self, stage: Stage) -> BuiltStage:
        """Stores to affine places, one Func over the loops. Tells Halide what the launcher's
        buffers look like: from 0 on, the loops' extents, and which loop takes neighbours.
        """
        built, extents = self._values(stage), self._loops(stage)
        for name, buffer in zip(stage.results, built.func.output_buffers(), strict=True):
            for number, loop in enumerate(built.func.args()):
                dim, unit = buffer.dim(number), self.plan.views[name].unit
                dim.set_stride(1 if unit == number else hl.Expr())
                if name == stage.results[0]:  # which the others follow
                    dim.set_bounds(0, extents[loop.name()])
        return built

    def _scatter(self, stage: Stage) -> BuiltStage:
        """Stores to computed places, one after the other: an output over the elements."""
        (name,), domain = stage.results, _domain(self._loops(stage))
        point, func, kept = self.evaluate(stage, domain), hl.Func(name), storage(self.dtypes[name])
        func[hl.Var(f"{name}_place")] = hl.undef(kept)
        func.output_buffer().dim(0).set_min(0)
        last = func.output_buffer().dim(0).extent() - 1
        for step in stage.steps:
            spot = [hl.unsafe_promise_clamped(point.index(step.args[1]), 0, last)]
            value = _naming(hl.cast(kept, point[str(step.args[2])]), domain)
            func[spot] = functions.add(expression(func[spot]), value) if step.is_add else value
        return BuiltStage(stage, func, list)


def storage(dtype: torch.dtype | None) -> hl.Type:
    """The type of a dtype in memory."""
    return hl.UInt(8) if dtype is torch.bool else TYPES[dtype]


def loaded(element: object, dtype: torch.dtype | None) -> hl.Expr:
    """A value from memory."""
    return expression(element) != 0 if dtype is torch.bool else expression(element)


def _variables(loops: Mapping[str, object]) -> dict[str, hl.Var]:
    """The innermost, which is the last loop, first."""
    return {name: hl.Var(name) for name in reversed([*loops])}


def _domain(extents: Mapping[str, hl.Expr]) -> dict[str, hl.RVar]:
    """The variables of a reduction domain, the innermost first."""
    names = [*extents][::-1]
    domain = hl.RDom([hl.Range(0, extents[name]) for name in names]) if names else ()
    return {name: domain[number] for number, name in enumerate(names)}


def _naming(value: hl.Expr, domain: Mapping[str, object]) -> hl.Expr:
    """``value`` as one that names a loop: Halide runs an update without one only once."""
    loop = expression(next(iter(domain.values()), 0))
    return hl.select(loop >= 0, value, hl.cast(value.type(), 0))


def _define(func: hl.Func, args: Sequence[object], values: State) -> None:
    func[tuple(args)] = values[0] if len(values) == 1 else hl.Tuple(tuple(values))


def _elements(func: hl.Func, args: Sequence[object]) -> State:
    whole, count = func[tuple(args)], func.outputs()
    return [expression(whole if count == 1 else whole[number]) for number in range(count)]
