"""Writes the tiles of a matrix product: names, positions, masks, loads, and the emitters of the
loops before and after the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch
from loopir import Body, Kernel, Range, Template, View, definitions, kernels_of, symbol

from inductor_triton.kernels.emitter import Dims, Emitter, Term
from inductor_triton.kernels.facts import Facts
from inductor_triton.kernels.indexing import integer
from inductor_triton.kernels.kernel_plan import KernelPlan, index_width, select_parts, symbol_bounds
from inductor_triton.kernels.tiling import Axis, Tiling
from inductor_triton.spec import Config

from .product import Product

FLOAT8 = {torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5"}
LOCALS = frozenset([
    "acc", "kbase", "rows", "columns", "program", "tile", "batch", "first", "together", "share",
    "mfirst", "nfirst", "place",
    "groups", "ends", "begins", "upto", "left", "right", "left_bits", "right_bits", "left_rows",
    "right_rows", *"mnkj", "rmask",
    *(f"{dim}{what}" for dim in "mnkj" for what in ("mask", "begin", "end")),
    *(f"{dim}BLOCK" for dim in "MNKJ"),
])  # fmt: skip
M, N, K, J, R = "mnkjr"
"""Axes of a block: rows and columns of the result; the sum along a row of the left operand and
along a column of the right; the columns if rows are reduced after the product.
"""


@dataclass(slots=True)
class TileWriter:
    """Writes the tiles of a product. ``whole`` has the names and lines of the function."""

    template: Template
    product: Product
    config: Config
    whole: Emitter = field(init=False)

    @property
    def dims(self) -> dict[str, tuple[sympy.Expr, int]]:
        """The extent of each dim, and its block size."""
        found, config = self.product, self.config
        rows, columns, sums = (found.m, config.y), (found.n, config.x), (found.k, config.r)
        return {M: rows, N: columns, R: columns, K: sums, J: sums}

    def __post_init__(self) -> None:
        kernel, tiling = self.kernel((Body(False, ()),), ()), self.tiling((M, N))
        known = symbol_bounds(kernel)
        limits, index_type = index_width(kernel, tiling, known)
        plan = KernelPlan(kernel, tiling, kernel.bodies, index_type, limits, symbol_bounds=known)
        self.whole = Emitter(plan)
        self.whole.taken |= dict.fromkeys(LOCALS, 0)
        self.whole.names = {
            k: self.whole.fresh(v) if v in LOCALS else v for k, v in self.whole.names.items()
        }
        self.whole.uses_errors = any("indirect" in k.ops for k in kernels_of(self.template))
        for size in self.template.sizes:
            self.whole.symbols[size] = Term(self.whole.name(size.name), frozenset(), torch.int64)  # type: ignore[attr-defined]

    def text(self, expr: sympy.Expr) -> str:
        return self.whole.index(expr)[0]

    def count(self, extent: sympy.Expr, block: int) -> str:
        number = integer(extent)
        if number is not None:
            return str(-(-number // block))
        return f"({self.text(extent)} + {block - 1}) // {block}"

    def limit(self, dim: str) -> str:
        """The end of a dim; for a group, the end of its part."""
        if dim == self.product.ragged:
            return f"{dim}end"
        return self.text(self.dims[dim][0])

    def masked(self, dim: str) -> bool:
        extent, block = self.dims[dim]
        number, is_ragged = integer(extent), {J: K, R: N}.get(dim, dim) == self.product.ragged
        return is_ragged or number is None or number % block != 0

    def position(self, view: View, names: Sequence[str | None]) -> str:
        terms = [self.text(view.offset)] if view.offset != 0 else []
        for name, step in zip(names, view.stride):
            if name is not None and step != 0:
                factor = f"({self.text(step)})" if integer(step) is None else str(step)
                terms.append(name if step == 1 else f"{name} * {factor}")
        return " + ".join(terms) or "0"

    def spread(self, view: View) -> str:
        """A load of a tensor that is broadcast along missing dims and dims of size 1: a bias,
        scales.
        """
        names = ["batch" if self.product.batch != 1 else None, M, N][3 - len(view.shape) :]
        places = [name if size != 1 else None for name, size in zip(names, view.shape)]
        return self.load(self.whole.name(view.buffer), self.position(view, places), places)

    def lines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.whole.line(text)

    def load(self, base: str, index: str, dims: Sequence[str | None], zero: bool = False) -> str:
        masks = [f"{dim}mask" for dim in dims if dim in (M, N, K, J) and self.masked(dim)]
        mask = f", mask={' & '.join(masks)}" + (", other=0.0" if zero else "") if masks else ""
        return f"tl.load({base} + {index}{mask})"

    def stage(
        self, kernel: Kernel, bodies: Sequence[Body], dims: tuple[str, str], width: int | None
    ) -> Emitter:
        whole = self.whole
        own_kernel = replace(self.kernel(bodies, kernel.ranges, kernel.reduction), name=kernel.name)
        # the dims of the stage's tensor after the batch are the axes of its block
        ranges = (*kernel.ranges, *kernel.reduction)
        places = dict(zip((item.symbol for item in ranges[-2:]), dims))
        facts = Facts(
            own_kernel.steps,
            self.template.dtypes,
            axes=places,
            symbol_bounds=symbol_bounds(own_kernel),
            index_type=whole.index_type,
        )
        plan = replace(
            whole.plan,
            kernel=own_kernel,
            tiling=self.tiling(dims, width),
            parts=select_parts(tuple(bodies), facts),
            symbol_bounds=facts.symbol_bounds,
        )
        emitter = Emitter(plan)
        emitter.taken, emitter.lines, emitter.indent = whole.taken, whole.lines, whole.indent
        emitter.uses_errors = whole.uses_errors
        own = definitions(plan.steps)
        emitter.names = dict(whole.names) | {name: whole.fresh(name) for name in sorted(own)}
        emitter.body_dims = frozenset(dims)
        emitter.symbols |= whole.symbols
        for item in ranges:
            name = places.get(item.symbol, "batch" if self.product.batch != 1 else "0")
            along: Dims = frozenset({name}) if name in dims else frozenset()
            emitter.symbols[item.symbol] = Term(N if name == R else name, along, torch.int64)
        return emitter

    def kernel(
        self, bodies: Sequence[Body], ranges: tuple[Range, ...], reduction: tuple[Range, ...] = ()
    ) -> Kernel:
        template = self.template
        shared = (template.name, template.device, template.buffers, template.sizes)
        return Kernel(*shared, ranges, reduction, tuple(bodies), hints=template.hints)

    def tiling(self, dims: tuple[str, str], width: int | None = None) -> Tiling:
        axes = []
        for position, dim in enumerate(dims):
            extent, block = self.dims[dim]
            block = width if width is not None and dim in (N, R) else block
            loop = Range(symbol(dim), extent)
            axes.append(Axis(dim, (loop,), block, position, 2, beyond=self.masked(dim)))
        return Tiling(tuple(axes), (), self.config)
