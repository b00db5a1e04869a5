"""The state of the text generator for one kernel."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from loopir import (
    Instruction,
    Kernel,
    Range,
    Value,
    definitions,
    flat_position,
    symbol,
)

from inductor_triton.spec import ERRORS, INDEX, PROGRAM

from .heuristics import next_power_of_two
from .index_text import IndexPrinter
from .indexing import integer, stride
from .kernel_plan import KernelPlan
from .library import function_names
from .ops import TRITON_DTYPES
from .tiling import Axis

RESERVED = frozenset([
    *keyword.kwlist, "tl", "triton", "libdevice", "range", "float", "program", "batch", "row",
    "blocks", "unchanged", ERRORS, INDEX,
    *(f"{axis}{suffix}" for axis in "xyr" for suffix in ("index", "mask", "base")),
    *(f"{axis}BLOCK" for axis in "XYR"),
])  # fmt: skip
WALK_STAGES = 3
"""Rows whose loads are in flight; with fewer, measured bandwidth drops by a quarter."""
Dims = frozenset[str]
NOTHING: Dims = frozenset()


@dataclass(frozen=True, slots=True)
class Term:
    """A value in the source: its text, the axes along which it varies and its dtype.

    ``literal`` may replace a constant where Triton infers its dtype; ``valid`` is the mask of an
    indirect index.
    """

    text: str
    dims: Dims
    dtype: torch.dtype
    literal: str | None = None
    valid: str | None = None


class Emitter:
    """The state of one kernel's text: lines so far, the values in scope, and the expressions
    already computed.

    Names: ``taken`` maps each identifier in use to the last number appended to it; ``names`` has
    the identifiers of the kernel's names.
    Values: ``computed`` maps each computed expression to its term. ``stores_made`` counts the
    stores per buffer, because a load after a store reads another value. ``unsynchronised`` has the
    buffers stored to since the last barrier. ``numbers`` become arguments of the function, if
    enabled (see ``number``).
    Axes: ``block_starts`` and ``lane_starts`` have the texts from which positions are computed. The
    body runs over ``body_dims``; those in ``unmasked`` need no mask here.
    A grid over rows: ``walk`` is the line of its loop; ``shares`` are the sums that a program
    accumulates over its rows.
    Long rows: the last ``blocks_held`` blocks, from ``rest_begins`` on, stay in registers; ``held``
    has the values that the previous pass loaded. ``replaced_axis`` is the reduction's axis while a
    narrower one replaces it. ``eviction`` is the cache policy per buffer in this pass.
    """

    def __init__(self, plan: KernelPlan) -> None:
        kernel, steps = plan.kernel, plan.steps
        self.plan, self.kernel, self.tiling = plan, kernel, plan.tiling
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.uses_errors = plan.checks_indices

        self.taken = dict.fromkeys(RESERVED | function_names(), 0)
        self.names = {name: self.fresh(name) for name in _names(kernel, steps)}
        self.function = self.fresh(kernel.name)
        self.lines: list[str] = []
        self.indent = 1

        self.values: dict[str, Term] = {}
        self.computed: dict[object, Term] = {}
        self.stores_made: dict[str, int] = {}
        self.unsynchronised: set[str] = set()
        self.numbers: dict[tuple[int, int], str] | None = None

        self.symbols: dict[sympy.Symbol, Term] = {}
        self.flat_loops: list[tuple[tuple[Range, ...], sympy.Symbol]] = []
        self.block_starts: dict[str, tuple[str, str]] = {}
        self.lane_starts: dict[str, tuple[str, str]] = {}
        self.body_dims: Dims = NOTHING
        self.unmasked: Dims = NOTHING

        self.walk: int | None = None
        self.shares: list[tuple[str, str, str]] = []

        self.rest_begins: int | None = None
        self.position_of_block = 0
        self.held: dict[int, dict[object, Term]] = {}
        self.replaced_axis: Axis | None = None
        self.eviction: dict[str, str] = {}

    # Names and lines

    def fresh(self, wanted: str) -> str:
        """An identifier like ``wanted`` that the source does not use yet."""
        name = wanted = wanted if wanted.isidentifier() else f"v_{wanted}"
        while name in self.taken:
            self.taken[wanted] += 1
            name = f"{wanted}_{self.taken[wanted]}"
        self.taken[name] = 0
        return name

    def name(self, known: str) -> str:
        """The identifier of a name of the kernel."""
        return self.names[known]

    def line(self, text: str) -> None:
        """Appends one statement."""
        self.lines.append("    " * self.indent + text)

    @property
    def index_type(self) -> str:
        """The type of indices, see :class:`KernelPlan`."""
        return self.plan.index_type

    @property
    def blocks_held(self) -> int:
        """The number of blocks of a row that stay in registers."""
        return self.plan.blocks_held

    @property
    def index_cast(self) -> str:
        """The conversion of an int32 to the type of indices; empty if none is needed."""
        return {"int32": "", "int64": ".to(tl.int64)", "dynamic": f".to({INDEX})"}[self.index_type]

    def emit_axes(self) -> None:
        """Writes the definitions of the iteration symbols and masks, except those of a looped
        reduction.
        """
        for size in self.kernel.sizes:
            self.symbols[size] = Term(self.name(size.name), NOTHING, torch.int64)
        reduction, config = self.tiling.reduction, self.tiling.config
        if not config.grid:
            self._emit_program_axes([axis for axis in self.tiling.program_axes if axis.loops])
        if reduction is not None and config.persistent:
            self._emit_axis(reduction, "")
        elif reduction is not None:
            self._mark(reduction)
        if config.grid:
            self._start_walk()

    def _start_walk(self) -> None:
        """Starts a program's loop over blocks of rows, after what ``before_walk`` inserts."""
        (rows,) = self.tiling.program_axes
        self.walk = len(self.lines)
        blocks = _blocks_text(self.index(rows.extent)[0], rows)
        scaling = self.plan.scaling
        if scaling is not None:
            result, source, factor = map(
                self.name, (scaling.result, scaling.source, scaling.factor)
            )
            self.line(
                f"unchanged = ({result}.to(tl.int64) == {source}.to(tl.int64)) & "
                f"(tl.load({factor}) == 1.0)"
            )
            self.line(f"blocks = tl.where(unchanged, 0, {blocks})")
            blocks = "blocks"
        stages = f"num_stages={WALK_STAGES}"
        self.line(f"for row in tl.range({PROGRAM}, {blocks}, {self.tiling.config.grid}, {stages}):")
        self.indent += 1
        self._emit_axis(rows, f"row{self.index_cast} * {rows.block_name} + ")

    def before_walk(self, text: str) -> None:
        """Appends a statement before the loop over the rows."""
        assert self.walk is not None
        self.lines.insert(self.walk, "    " + text)
        self.walk += 1

    def add_share(self, buffer: str, text: str, index: str) -> None:
        """Adds a block to this program's share of a sum over the rows."""
        dtype = TRITON_DTYPES[self.buffers[buffer].dtype]
        total = self.fresh(f"{buffer}_acc")
        self.before_walk(f"{total} = tl.full({self.shape(frozenset('xr'))}, 0, {dtype})")
        masked = self.masks(frozenset("x"))
        self.line(f"{total} += " + (f"tl.where({masked[0]}, {text}, 0.0)" if masked else text))
        self.shares.append((buffer, total, index))

    def end_walk(self) -> None:
        """Writes the shares after the loop over the rows."""
        self.indent = 1
        mask = "".join(f", mask={name}" for name in self.masks(frozenset("r")))
        for buffer, total, index in self.shares:
            size = integer(self.buffers[buffer].numel // self.tiling.config.grid)
            place = f"{self.name(buffer)} + {PROGRAM}{self.index_cast} * {size} + {index}"
            self.line(
                f"tl.store({place}, tl.reduce({total}, 0, combine_sum, keep_dims=True){mask})"
            )

    def _emit_program_axes(self, axes: list[Axis]) -> None:
        program = f"{PROGRAM}{self.index_cast}"
        if len(self.tiling.program_axes) == 1:
            for axis in axes:
                self._emit_axis(axis, f"{program} * {axis.block_name} + ")
            return
        self.line(f"program = {program}")
        divisor = ""
        for axis in reversed(axes):
            count = _blocks_text(self.index(axis.extent)[0], axis)
            place = (
                f"program{divisor} % {count}"
                if axis is not axes[0] or self.tiling.batch
                else f"program{divisor}"
            )
            self._emit_axis(axis, f"({place}) * {axis.block_name} + ")
            divisor += f" // {count}"
        self._emit_loops(self.tiling.batch, f"program{divisor}", "batch", NOTHING)

    def _emit_axis(self, axis: Axis, offset: str) -> None:
        expand = "" if axis.rank == 1 else ("[:, None]", "[None, :]")[axis.position]
        text = f"{offset}tl.arange(0, {axis.block_name}){expand}"
        if axis.name == "r" and self.index_cast:
            text = f"({text}){self.index_cast}" if offset else f"{text}{self.index_cast}"
        self.block_starts[axis.name] = offset, expand
        number = offset.removesuffix(f" * {axis.block_name} + ")
        blocks = (number, axis.block) if number != offset and axis.block > 1 else None
        if len(axis.loops) == 1 and offset:
            lanes = f"tl.arange(0, {axis.block_name}){expand}"
            self.lane_starts[axis.loops[0].symbol.name] = lanes, offset.removesuffix(" + ")
        self._emit_loops(axis.loops, text, f"{axis.name}index", frozenset(axis.name), blocks)
        if axis.masked and axis.name not in self.unmasked:
            self.line(f"{axis.name}mask = {self.position(axis)} < {self.index(axis.extent)[0]}")

    def position(self, axis: Axis) -> str:
        """The variable that has the flat position along ``axis``."""
        return self.name(axis.loops[0].symbol.name) if len(axis.loops) == 1 else f"{axis.name}index"

    def reduction_header(self, block: int = 0) -> None:
        """Defines the reduction's symbols for block number ``block`` after ``rbase``."""
        axis = self.tiling.reduction
        assert axis is not None
        start = f"rbase + {block * axis.block} + " if block else "rbase + "
        if self.blocks_held and self.rest_begins is not None:
            self.position_of_block = self.rest_begins + block * axis.block
            left = (integer(axis.extent) or 0) - self.position_of_block
            self.unmasked = frozenset("r") if left >= axis.block else frozenset()
            self.computed |= self.held.get(self.position_of_block, {})
            axis = self._end_of_row(axis, left)
        self._emit_axis(axis, start)

    def _end_of_row(self, axis: Axis, left: int) -> Axis:
        """``axis``, or, if the whole row stays in registers, a narrower axis for the rest of it.
        The narrower axis replaces ``axis`` until the block ends, because registers are scarce
        there.
        """
        config = self.tiling.config
        width = max(next_power_of_two(left), 64 * config.num_warps)
        if (
            width >= axis.block
            or not config.grid
            or any(str(step.args[0]).startswith("arg") for step in self.plan.steps)
        ):
            return axis
        narrow = replace(axis, block=width, ends=True)
        self.tiling = replace(
            self.tiling, axes=tuple(narrow if item is axis else item for item in self.tiling.axes)
        )
        self.replaced_axis = axis
        return narrow

    def leave_block(self) -> None:
        """Saves the values that a block at the end of the row has loaded, for later passes."""
        if self.replaced_axis is not None:
            self.tiling = replace(
                self.tiling,
                axes=tuple(self.replaced_axis if item.ends else item for item in self.tiling.axes),
            )
            self.replaced_axis = None
        if not self.blocks_held or self.rest_begins is None or self.position_of_block in self.held:
            return
        kept = self.held[self.position_of_block] = {}
        for key, term in list(self.computed.items()):
            if isinstance(key, tuple) and key[0] == "load" and term.dims >= {"x", "r"}:
                name = self.fresh("held")
                self.line(f"{name} = {term.text}")
                kept[key] = replace(term, text=name)

    def _mark(self, axis: Axis) -> None:
        for item in axis.loops:
            self.symbols[item.symbol] = Term(
                self.name(item.symbol.name), frozenset(axis.name), torch.int64
            )

    def _emit_loops(
        self,
        loops: tuple[Range, ...],
        text: str,
        flat: str,
        dims: Dims,
        blocks: tuple[str, int] | None = None,
    ) -> None:
        """Defines the symbols of ``loops`` at the flat positions ``text``; ``blocks``: the number
        and size of the block there, if known.
        """
        if not loops:
            return
        names = [self.name(item.symbol.name) for item in loops]
        for item, name in zip(loops, names):
            self.symbols[item.symbol] = Term(name, dims, torch.int64)
        if len(loops) == 1:
            self.line(f"{names[0]} = {text}")
            return
        self.line(f"{flat} = {text}")
        position = symbol(flat)
        self.symbols[position] = Term(flat, dims, torch.int64)
        self.flat_loops.append((loops, position))
        inner = sympy.Integer(1)
        for number, item in reversed(list(enumerate(loops))):
            whole = integer(inner)
            if blocks is not None and whole is not None and whole % blocks[1] == 0:
                # The block lies within one iteration of this loop, so values that depend on it
                # alone are computed once, not per element.
                part = blocks[0] if whole == blocks[1] else f"{blocks[0]} // {whole // blocks[1]}"
                self.symbols[item.symbol] = Term(names[number], NOTHING, torch.int64)
            else:
                part = flat if inner == 1 else f"{flat} // {self._factor(inner)}"
            if number:
                part = f"{part} % {self._factor(item.extent)}"
            self.line(f"{names[number]} = {part}")
            inner = sympy.expand(inner * item.extent)

    def _factor(self, expr: sympy.Expr) -> str:
        text = self.index(expr)[0]
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    # Values and indices

    def operand(self, value: object) -> Term:
        """The term of an SSA operand."""
        assert isinstance(value, Value)
        return self.values[value.name]

    def define(
        self, wanted: str, text: str, dims: Dims, dtype: torch.dtype, key: object = None
    ) -> Term:
        """Assigns ``text`` to a variable, unless the same expression already has one; returns its
        term.
        """
        key = (text, dims) if key is None else key
        if key not in self.computed:
            name = self.names[wanted] if wanted in self.names else self.fresh(wanted)
            self.line(f"{name} = {text}")
            self.computed[key] = Term(name, dims, dtype)
        return self.computed[key]

    def index(self, expr: sympy.Expr) -> tuple[str, Dims, list[Term]]:
        """The text of an index, its dims, and the indirect symbols in it."""
        expr = self.by_flat_position(sympy.sympify(expr))
        terms = [self.symbols[symbol] for symbol in sorted(expr.free_symbols, key=str)]  # type: ignore[index]
        dims = NOTHING.union(*(term.dims for term in terms))
        text = IndexPrinter(self.plan.symbol_bounds, lambda symbol: self.symbols[symbol].text).show(
            expr
        )
        return text, dims, [term for term in terms if term.valid is not None]

    def by_flat_position(self, expr: sympy.Expr) -> sympy.Expr:
        """``expr`` in terms of an axis's flat position instead of its loops, where it is linear in
        that: this exposes contiguity.
        """
        for loops, flat in self.flat_loops:
            factor = stride(expr, loops[-1].symbol)
            if not factor:
                continue
            rest = sympy.expand(expr - factor * flat_position(loops))
            if not rest.free_symbols & {item.symbol for item in loops}:
                expr = rest + factor * flat
        return expr

    def number(self, value: int, divisor: int = 1) -> str:
        """``value // divisor`` as an argument of the function, because the code need not know it:
        kernels that differ only in such numbers compile once.
        """
        if self.numbers is None:
            return str(value // divisor)
        if (value, divisor) not in self.numbers:
            self.numbers[value, divisor] = self.fresh("number")
        return self.numbers[value, divisor]

    def shape(self, dims: Dims) -> str:
        """The block shape of a value that varies along ``dims``."""
        return (
            "["
            + ", ".join(axis.block_name if axis.name in dims else "1" for axis in self.tiling.axes)
            + "]"
        )

    def expanded(self, text: str, dims: Dims, wanted: Dims) -> str:
        """``text`` broadcast from ``dims`` to ``wanted``."""
        if dims == wanted and dims:
            return text
        if text.lstrip("-").isdigit():
            return f"tl.full({self.shape(wanted)}, {text}, tl.int32)"
        return f"tl.broadcast_to({text}, {self.shape(wanted)})"

    def masks(self, dims: Dims) -> list[str]:
        """The masks of the blocks along ``dims``."""
        masked = [
            axis
            for axis in self.tiling.axes
            if axis.name in dims - self.unmasked and axis.loops and axis.masked
        ]
        return [f"{axis.name}mask" for axis in masked]


def _blocks_text(extent: str, axis: Axis) -> str:
    number = integer(axis.extent)
    if number is not None:
        return str(-(-number // axis.block))
    return f"(({extent} + {axis.block - 1}) // {axis.block})"


def _names(kernel: Kernel, steps: Sequence[Instruction]) -> list[str]:
    names = [buffer.name for buffer in kernel.buffers] + [size.name for size in kernel.sizes]
    names += [item.symbol.name for item in (*kernel.ranges, *kernel.reduction)]
    return names + list(definitions(steps))
