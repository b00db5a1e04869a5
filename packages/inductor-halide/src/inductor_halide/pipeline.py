"""What the text of a kernel runs on: it declares inputs and stages, which become Halide Funcs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import halide as hl

from . import functions
from .functions import expression
from .reducers import Reducer, State, reducer

Body = Callable[..., dict[str, hl.Expr]]
Point = Callable[..., hl.Expr]


@dataclass
class Stage:
    """A Func with its coordinates, innermost first; ``reduced`` are the loops of its update, and
    ``partial`` the Func of its lanes' results, if there is one.
    """

    kind: str
    func: hl.Func
    coordinates: list[hl.Var]
    reduced: list[hl.RVar]
    partial: hl.Func | None = None


class Pipeline:
    """``vector`` names the loop along whose lanes elements are computed together."""

    def __init__(self, vector: str | None, lanes: int) -> None:
        self.vector, self.lane_count = vector, lanes
        self.sizes: dict[str, hl.Param] = {}
        self.images: dict[str, hl.ImageParam] = {}
        self.dtypes: dict[str, str] = {}
        self.outer: dict[str, hl.Expr] = {}
        self.inner: dict[str, hl.Expr] = {}
        self.stages: list[Stage] = []
        self.outputs: list[tuple[tuple[str, ...], hl.Func]] = []

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

    def ranges(self, **extents: hl.Expr | int) -> None:
        """The loops around all bodies, outermost first."""
        self.outer = {name: expression(extent) for name, extent in extents.items()}

    def reduction(self, **extents: hl.Expr | int) -> None:
        """The loops around inner bodies."""
        self.inner = {name: expression(extent) for name, extent in extents.items()}

    # In bodies

    def load(
        self, name: str, index: hl.Expr | int, mask: hl.Expr | None = None,
        other: hl.Expr | None = None,
    ) -> hl.Expr:  # fmt: skip
        """An element from before the kernel; ``other`` where the mask is false."""
        image = self.images[name]
        last = image.dim(0).extent() - 1
        if mask is None:
            return loaded(
                image[hl.unsafe_promise_clamped(expression(index), 0, last)], self.dtypes[name]
            )
        place = hl.clamp(expression(index), 0, hl.max(last, 0))
        return hl.select(mask, loaded(image[place], self.dtypes[name]), other)

    def indirect(self, value: hl.Expr, size: hl.Expr | int) -> hl.Expr:
        """``value``, which must be in [0, size)."""
        value = hl.cast(hl.Int(64), value)
        inside = (value >= 0) & (value < hl.cast(hl.Int(64), size))
        return hl.require(inside, value, hl.Expr(functions.OUT_OF_RANGE))

    # Stages

    def reduce(self, body: Body, **kinds: tuple[str, str]) -> list[Point]:
        """Reductions of values of an inner body."""
        names, args = list(kinds), list(self._vars(inner=False).values())[::-1]
        body = self._over_domain(body)
        whole = self._domain(self.inner)
        point = {**self._vars(inner=False), **whole}
        values = [body(**point)[name] for name in names]
        reducers = [
            reducer(kind, dtype, value.type())
            for (kind, dtype), value in zip(kinds.values(), values, strict=True)
        ]
        func = hl.Func("_".join(names))
        _define(func, args, [r.start() for r in reducers])
        stage = Stage("reduce", func, args, [])
        if self.vector in self.inner and self.vector == list(self.inner)[-1]:
            self._reduce_lanes(body, names, reducers, stage)
        else:
            self._accumulate(func, args, names, reducers, body, point)
            stage.reduced = list(whole.values())
        self.stages.append(stage)
        return self._results(func, args, reducers)

    def _accumulate(
        self, func: hl.Func, args: list, names: list[str], reducers: list[Reducer], body: Body,
        point: Mapping[str, hl.Expr],
    ) -> None:  # fmt: skip
        """Adds the elements of a domain to ``func[args]``."""
        values = body(**point)
        position: hl.Expr = hl.Expr(0)
        for name, extent in self.inner.items():
            position = position * extent + point[name]
        states = _split(func, args, reducers)
        _define(
            func,
            args,
            [
                r.combine(state, r.element(values[name], position))
                for r, state, name in zip(reducers, states, names, strict=True)
            ],
        )

    def _reduce_lanes(
        self, body: Body, names: list[str], reducers: list[Reducer], stage: Stage
    ) -> None:
        """Every lane reduces the elements whose position it is, modulo the number of lanes; then
        come the lanes together, and the elements that are left.
        """
        assert self.vector is not None
        lane, count = hl.Var("lane"), self.lane_count
        partial, args = hl.Func(f"{stage.func.name()}_lanes"), stage.coordinates
        extent = self.inner[self.vector]
        _define(partial, [lane, *args], [r.start() for r in reducers])
        blocks = self._domain({**self.inner, self.vector: extent / count})
        point = {**self._vars(inner=False), **blocks}
        point[self.vector] = hl.Expr(blocks[self.vector]) * count + lane
        self._accumulate(partial, [lane, *args], names, reducers, body, point)
        together = hl.RDom([hl.Range(0, count)], "together")
        states = _split(stage.func, args, reducers)
        others = _split(partial, [together[0], *args], reducers)
        _define(
            stage.func,
            args,
            [r.combine(a, b) for r, a, b in zip(reducers, states, others, strict=True)],
        )
        rest = self._domain({**self.inner, self.vector: extent % count})
        point = {**self._vars(inner=False), **rest}
        point[self.vector] = extent / count * count + rest[self.vector]
        self._accumulate(stage.func, args, names, reducers, body, point)
        stage.partial, stage.reduced = partial, list(blocks.values())

    def values(self, body: Body, **dtypes: str) -> list[Point]:
        """Values of an outer body that later bodies read."""
        point = self._vars(inner=False)
        computed = body(**point)
        func, args = hl.Func("_".join(dtypes)), list(point.values())[::-1]
        _define(func, args, [[computed[name]] for name in dtypes])
        self.stages.append(Stage("values", func, args, []))
        return self._points(func, args, [lambda v: v] * len(dtypes))

    def scan(self, body: Body, **kinds: tuple[str, str]) -> list[Point]:
        """An inclusive prefix over the reduction; its Func starts one place before."""
        ((name, (kind, dtype)),) = kinds.items()
        ((loop, _),) = self.inner.items()
        func, args = hl.Func(name), list(self._vars(inner=True).values())[::-1]
        wanted = functions.TYPES[dtype]
        reduction = reducer(kind, dtype, wanted)
        _define(func, args, [reduction.start()])
        domain = self._domain(self.inner)
        point = {**self._vars(inner=False), **domain}
        value = reduction.element(body(**point)[name], domain[loop])
        here = [domain[loop], *args[1:]]
        before = [hl.Expr(domain[loop]) - 1, *args[1:]]
        _define(func, here, [reduction.combine([expression(func[before])], value)])
        self.stages.append(Stage("scan", func, args, list(domain.values())))
        return self._points(func, args, [lambda v: hl.cast(wanted, v)])

    def store(self, body: Body, **dtypes: str) -> list[Point]:
        """Stores whose places are affine: outputs over the loops."""
        point = self._vars(self._is_inner(body))
        func, args = hl.Func("_".join(dtypes)), list(point.values())[::-1]
        computed = body(**point)
        _define(func, args, [[stored(computed[name], dtype)] for name, dtype in dtypes.items()])
        self.stages.append(Stage("store", func, args, []))
        self.outputs.append((tuple(dtypes), func))
        return self._points(
            func, args, [lambda v, dtype=dtype: loaded(v, dtype) for dtype in dtypes.values()]
        )

    def scatter(self, body: Body, keys: Sequence[tuple[str, str | None]], **dtypes: str) -> None:
        """Stores to computed places, one after the other: an output over the elements."""
        ((name, dtype),) = dtypes.items()
        domain = self._domain({**self.outer, **(self.inner if self._is_inner(body) else {})})
        func, place = hl.Func(name), hl.Var("place")
        func[place] = hl.undef(storage(dtype))
        computed = body(**domain)
        always = [expression(loop) >= 0 for loop in domain.values()][:1]
        for key, mode in keys:
            index, value = computed[key]  # type: ignore[misc]
            spot = [
                hl.unsafe_promise_clamped(
                    expression(index), 0, func.output_buffer().dim(0).extent() - 1
                )
            ]
            value = stored(value, dtype)
            for condition in always:  # as in _over_domain
                value = hl.select(condition, value, hl.cast(value.type(), 0))
            old = expression(func[spot])
            func[spot] = functions.add(old, value) if mode == "add" else value
        self.stages.append(Stage("scatter", func, [place], list(domain.values())))
        self.outputs.append(((name,), func))

    # Helpers

    def _over_domain(self, body: Body) -> Body:
        """A body whose results name a loop of the reduction: Halide runs an update once whose
        value has none.
        """
        loop = list(self.inner)[-1]

        def named(**point: hl.Expr) -> dict[str, hl.Expr]:
            always = expression(point[loop]) >= 0
            results = body(**point)
            return {
                name: hl.select(always, value, hl.cast(value.type(), 0))
                for name, value in results.items()
                if isinstance(value, hl.Expr)
            }

        return named

    def _vars(self, inner: bool) -> dict[str, hl.Var]:
        return {name: hl.Var(name) for name in (*self.outer, *(self.inner if inner else ()))}

    def _domain(self, extents: Mapping[str, hl.Expr]) -> dict[str, hl.RVar]:
        """The variables of a reduction domain, the innermost, which is the last loop, first."""
        if not extents:
            return {}
        names = list(extents)[::-1]
        domain = hl.RDom([hl.Range(0, extents[name]) for name in names])
        return {name: domain[number] for number, name in enumerate(names)}

    def _is_inner(self, body: Body) -> bool:
        code = body.__code__
        return code.co_argcount > len(self.outer)

    def _results(self, func: hl.Func, args: list[hl.Var], reducers: list[Reducer]) -> list[Point]:
        def point_of(number: int) -> Point:
            def at(*place: hl.Expr) -> hl.Expr:
                states = _split(func, list(place)[::-1], reducers)
                return reducers[number].result(states[number])

            return at

        found = [point_of(number) for number in range(len(reducers))]
        return found

    def _points(
        self, func: hl.Func, args: list[hl.Var], converts: Sequence[Callable[[hl.Expr], hl.Expr]]
    ) -> list[Point]:
        def point_of(number: int) -> Point:
            return lambda *place: converts[number](
                _element(func, list(place)[::-1], number, len(converts))
            )

        found = [point_of(number) for number in range(len(converts))]
        return found


def storage(dtype: str) -> hl.Type:
    """The type of a dtype in memory."""
    return hl.UInt(8) if dtype == "bool" else functions.TYPES[dtype]


def loaded(element: hl.Expr, dtype: str) -> hl.Expr:
    """A value from memory."""
    element = expression(element)
    return element != 0 if dtype == "bool" else element


def stored(value: hl.Expr, dtype: str) -> hl.Expr:
    """A value for memory."""
    return hl.cast(storage(dtype), value)


def _define(func: hl.Func, args: Sequence[object], values: Sequence[State]) -> None:
    flat = [expression(part) for state in values for part in state]
    func[tuple(args)] = flat[0] if len(flat) == 1 else hl.Tuple(tuple(flat))


def _element(func: hl.Func, args: Sequence[object], number: int, count: int) -> hl.Expr:
    whole = func[tuple(args)]
    return expression(whole if count == 1 else whole[number])


def _split(func: hl.Func, args: Sequence[object], reducers: Sequence[Reducer]) -> list[State]:
    """The states of several reductions in the elements of one Func."""
    widths = [len(r.start()) for r in reducers]
    flat = [_element(func, args, n, sum(widths)) for n in range(sum(widths))]
    result: list[State] = []
    for width in widths:
        result.append(flat[:width])
        flat = flat[width:]
    return result
