"""What the text of a kernel runs on: it declares inputs and stages, which become Halide Funcs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from . import functions
from .functions import expression
from .reducers import Reducer, State, reducer

Body = Callable[..., dict[str, Any]]
Point = Callable[..., hl.Expr]


@dataclass
class Stage:
    """A Func with its coordinates, innermost first; ``reduced`` are the loops of its update, and
    ``partial`` the Func of its lanes' results, if there is one.
    """

    kind: str
    func: hl.Func
    coordinates: list[hl.Var]
    reduced: list[hl.RVar] = field(default_factory=list)
    partial: hl.Func | None = None


class Pipeline:
    """``vector`` names the loop along whose lanes elements are computed together."""

    def __init__(self, vector: str | None, lanes: int) -> None:
        self.vector, self.lanes = vector, lanes
        self.sizes: dict[str, hl.Param] = {}
        self.images: dict[str, hl.ImageParam] = {}
        self.dtypes: dict[str, str] = {}
        self.outer: dict[str, hl.Expr] = {}
        self.inner: dict[str, hl.Expr] = {}
        self.stages: list[Stage] = []
        self.outputs: list[tuple[list[str], hl.Func]] = []

    # Declarations

    def size(self, name: str) -> hl.Expr:
        """A size, by which the kernel is called."""
        self.sizes[name] = hl.Param(hl.Int(32), name)
        return hl.Expr(self.sizes[name])

    def input(self, name: str, dtype: str) -> None:
        """A buffer that is read, as one dimension."""
        self.images[name] = hl.ImageParam(storage(dtype), 1, f"{name}_memory")
        self.images[name].dim(0).set_min(0)
        self.dtypes[name] = dtype

    def ranges(self, **extents: object) -> None:
        """The loops around all bodies, outermost first."""
        self.outer = {name: expression(extent) for name, extent in extents.items()}

    def reduction(self, **extents: object) -> None:
        """The loops around inner bodies."""
        self.inner = {name: expression(extent) for name, extent in extents.items()}

    # In bodies

    def load(self, name: str, index: object, *masked: hl.Expr) -> hl.Expr:
        """An element from before the kernel; ``masked`` are a mask and the value where it is
        false.
        """
        place, last = expression(index), self.images[name].dim(0).extent() - 1
        if masked:
            place = hl.clamp(place, 0, hl.max(last, 0))
        value = loaded(
            self.images[name][hl.unsafe_promise_clamped(place, 0, last)], self.dtypes[name]
        )
        return hl.select(masked[0], value, masked[1]) if masked else value

    def indirect(self, value: hl.Expr, size: object) -> hl.Expr:
        """``value``, which must be in [0, size)."""
        value = hl.cast(hl.Int(64), value)
        inside = (value >= 0) & (value < hl.cast(hl.Int(64), size))
        return hl.require(inside, value, hl.Expr(functions.OUT_OF_RANGE))

    # Stages

    def reduce(self, body: Body, **kinds: tuple[str, str]) -> list[Point]:
        """Reductions of values of an inner body."""
        return [self._reduce(body, name, *kind) for name, kind in kinds.items()]

    def _reduce(self, body: Body, name: str, kind: str, dtype: str) -> Point:
        """By lanes, each takes the elements whose position it is, modulo their number; then come
        the lanes together, and the elements that are left.
        """
        outer = self._vars(self.outer)
        args, whole = list(outer.values())[::-1], self._domain(self.inner)
        operand = body(**outer, **whole)[name].type()
        reduction, func = reducer(kind, dtype, operand), hl.Func(name)
        _define(func, args, reduction.start)
        stage = Stage("reduce", func, args, list(whole.values()))

        def accumulate(into: hl.Func, places: list, domain: Mapping[str, hl.Expr]) -> None:
            position: hl.Expr = hl.Expr(0)
            for loop, extent in self.inner.items():
                position = position * extent + domain[loop]
            value = self._named(body(**outer, **domain)[name], domain)
            state = _state(into, places, reduction)
            _define(into, places, reduction.combine(state, reduction.element(value, position)))

        if self.vector is not None and self.vector == [*self.inner][-1]:
            extent, lane = self.inner[self.vector], hl.Var("lane")
            stage.partial = partial = hl.Func(f"{name}_lanes")
            _define(partial, [lane, *args], reduction.start)
            blocks = self._domain({**self.inner, self.vector: extent / self.lanes})
            stage.reduced = list(blocks.values())
            mine = expression(blocks[self.vector]) * self.lanes + lane
            accumulate(partial, [lane, *args], {**blocks, self.vector: mine})
            lanes = hl.RDom([hl.Range(0, self.lanes)])
            other = _state(partial, [lanes[0], *args], reduction)
            _define(func, args, reduction.combine(_state(func, args, reduction), other))
            rest = self._domain({**self.inner, self.vector: extent % self.lanes})
            left = extent / self.lanes * self.lanes + rest[self.vector]
            accumulate(func, args, {**rest, self.vector: left})
        else:
            accumulate(func, args, whole)
        self.stages.append(stage)
        return lambda *place: reduction.result(_state(func, place[::-1], reduction))

    def scan(self, body: Body, **kinds: tuple[str, str]) -> list[Point]:
        """An inclusive prefix over the reduction; its Func starts one place before."""
        ((name, (kind, dtype)),), outer = kinds.items(), self._vars(self.outer)
        domain = self._domain(self.inner)
        ((loop, place),) = domain.items()
        reduction, func = reducer(kind, dtype, functions.TYPES[dtype]), hl.Func(name)
        others = list(outer.values())[::-1]
        _define(func, [hl.Var(loop), *others], reduction.start)
        before = _state(func, [expression(place) - 1, *others], reduction)
        element = reduction.element(body(**outer, **domain)[name], place)
        _define(func, [place, *others], reduction.combine(before, element))
        self.stages.append(Stage("scan", func, [hl.Var(loop), *others], [place]))
        return [lambda *at: reduction.result(_state(func, at[::-1], reduction))]

    def values(self, body: Body, **dtypes: str) -> list[Point]:
        """Values of an outer body that later bodies read."""
        point = self._vars(self._loops(body))
        args, computed = list(point.values())[::-1], body(**point)
        func = hl.Func("_".join(dtypes))
        _define(func, args, [stored(computed[name], dtype) for name, dtype in dtypes.items()])
        self.stages.append(Stage("values", func, args))
        names = list(dtypes)
        return [
            lambda *place, name=name: loaded(
                _elements(func, place[::-1], len(names))[names.index(name)], dtypes[name]
            )
            for name in names
        ]

    def store(self, body: Body, **dtypes: str) -> list[Point]:
        """Stores whose places are affine: outputs over the loops."""
        points = self.values(body, **dtypes)
        self.stages[-1].kind = "store"
        self.outputs.append((list(dtypes), self.stages[-1].func))
        return points

    def scatter(self, body: Body, keys: Sequence[tuple[str, str | None]], **dtypes: str) -> None:
        """Stores to computed places, one after the other: an output over the elements."""
        ((name, dtype),) = dtypes.items()
        domain = self._domain(self._loops(body))
        func, computed = hl.Func(name), body(**domain)
        func[hl.Var("place")] = hl.undef(storage(dtype))
        last = func.output_buffer().dim(0).extent() - 1
        for key, mode in keys:
            index, value = computed[key]
            spot = [hl.unsafe_promise_clamped(expression(index), 0, last)]
            value, old = self._named(stored(value, dtype), domain), expression(func[spot])
            func[spot] = functions.add(old, value) if mode == "add" else value
        self.stages.append(Stage("scatter", func, []))
        self.outputs.append(([name], func))

    # Helpers

    def _named(self, value: hl.Expr, domain: Mapping[str, hl.Expr]) -> hl.Expr:
        """``value`` as one that names a loop: Halide runs an update without one only once."""
        for loop in [*domain.values()][:1]:
            value = hl.select(expression(loop) >= 0, value, hl.cast(value.type(), 0))
        return value

    def _loops(self, body: Body) -> dict[str, hl.Expr]:
        inner = body.__code__.co_argcount > len(self.outer)
        return {**self.outer, **(self.inner if inner else {})}

    def _vars(self, loops: Mapping[str, hl.Expr]) -> dict[str, hl.Var]:
        return {name: hl.Var(name) for name in loops}

    def _domain(self, extents: Mapping[str, hl.Expr]) -> dict[str, hl.RVar]:
        """The variables of a reduction domain, the innermost, which is the last loop, first."""
        names = list(extents)[::-1]
        domain = hl.RDom([hl.Range(0, extents[name]) for name in names]) if names else ()
        return {name: domain[number] for number, name in enumerate(names)}


def storage(dtype: str) -> hl.Type:
    """The type of a dtype in memory."""
    return hl.UInt(8) if dtype == "bool" else functions.TYPES[dtype]


def loaded(element: object, dtype: str) -> hl.Expr:
    """A value from memory."""
    return expression(element) != 0 if dtype == "bool" else expression(element)


def stored(value: hl.Expr, dtype: str) -> hl.Expr:
    """A value for memory."""
    return hl.cast(storage(dtype), value)


def _define(func: hl.Func, args: Sequence[object], values: State) -> None:
    func[tuple(args)] = values[0] if len(values) == 1 else hl.Tuple(tuple(values))


def _elements(func: hl.Func, args: Sequence[object], count: int) -> State:
    whole = func[tuple(args)]
    return [expression(whole if count == 1 else whole[number]) for number in range(count)]


def _state(func: hl.Func, args: Sequence[object], reduction: Reducer) -> State:
    return _elements(func, args, len(reduction.start))
