"""From a kernel to readable Triton source and what its launch needs."""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass, replace

import sympy
import torch
from loopir import Instruction, Kernel, KernelSource, Range, Value

from inductor_triton import ops
from inductor_triton.heuristics import Config
from inductor_triton.index_text import IndexPrinter
from inductor_triton.indexing import bounds, flat_position, indices, integer, merge_loops, product, stride
from inductor_triton.library import DECORATOR, function_names, needed_functions
from inductor_triton.reductions import loop_reduction, persistent_reduction
from inductor_triton.tiling import Axis, Tiling, choose_tiling

INT32_LIMIT = 2**31 - 1
ERRORS = "errors"
INDEX = "INDEX"
RESERVED = frozenset(
    [*keyword.kwlist, "tl", "triton", "libdevice", "range", "float", "program", "batch", ERRORS, INDEX]
    + [f"{axis}{suffix}" for axis in "xyr" for suffix in ("index", "mask", "base")]
)
Dims = frozenset[str]
NOTHING: Dims = frozenset()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How a kernel is launched: one program per point of ``batch`` and per block of each of ``blocks`` (extent, block size).

    ``signature`` has the Triton type of each tensor argument; ints follow, one per size, then the error flag if ``errors``.
    ``index`` is ``"int32"``, ``"int64"``, or ``"dynamic"``: decided at launch by whether all of ``limits`` fit 32 bits.
    """

    function: str
    signature: tuple[str, ...]
    sizes: tuple[str, ...]
    blocks: tuple[tuple[sympy.Expr, int], ...]
    batch: sympy.Expr
    config: Config
    index: str
    limits: tuple[sympy.Expr, ...]
    errors: bool


@dataclass(frozen=True, slots=True)
class Term:
    """A value in the source: its text, the axes along which it varies and its dtype.

    ``literal`` may stand for a constant where Triton finds its dtype by itself; ``valid`` is the mask of an indirect index.
    """

    text: str
    dims: Dims
    dtype: torch.dtype
    literal: str | None = None
    valid: str | None = None


def generate_source(kernel: Kernel, config: Config | None = None) -> KernelSource:
    """The Triton source of ``kernel``; its metadata is ``(("launch", LaunchSpec),)``."""
    flat = merge_loops(kernel)
    tiling = choose_tiling(flat, config)
    emitter = Emitter(flat, tiling)
    body = emitter.emit()
    text = _assemble(kernel, tiling.config, body)
    spec = LaunchSpec(
        function=emitter.function,
        signature=tuple(ops.SIGNATURES[buffer.dtype] for buffer in kernel.buffers),
        sizes=tuple(size.name for size in kernel.sizes),
        blocks=tuple((axis.extent, axis.block) for axis in tiling.program_axes),
        batch=product(item.extent for item in tiling.batch),
        config=tiling.config,
        index=emitter.index_type,
        limits=emitter.limits,
        errors=emitter.uses_errors,
    )
    return KernelSource(kernel, text, (("launch", spec),))


def launch_spec(source: KernelSource) -> LaunchSpec:
    """The launch description in the metadata of a source of this package."""
    spec = dict(source.metadata).get("launch")
    if not isinstance(spec, LaunchSpec):
        raise TypeError(f"{source.kernel.name}: not a source of inductor_triton")
    return spec


def _assemble(kernel: Kernel, config: Config, function: str) -> str:
    lines = ["import triton", "import triton.language as tl"]
    if "libdevice." in function:
        lines.append("from triton.language.extra.cuda import libdevice")
    parts = ["\n".join(lines) + "\n", *needed_functions(function)]
    comment = [f"# {name}: {' '.join(line.split())}".rstrip(": ") for name, line in kernel.origins]
    comment.append(f"# num_warps={config.num_warps}, num_stages={config.num_stages}")
    return "\n\n".join([*parts, "\n".join(comment) + "\n" + function])


class Emitter:
    """The state of one kernel's text: lines so far, the values in scope, and the expressions already computed."""

    def __init__(self, kernel: Kernel, tiling: Tiling) -> None:
        self.kernel = kernel
        self.tiling = tiling
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.function = self.name(kernel.name)
        self.lines: list[str] = []
        self.indent = 1
        self.values: dict[str, Term] = {}
        self.symbols: dict[sympy.Symbol, Term] = {}
        self.computed: dict[object, Term] = {}
        self.flat_loops: list[tuple[tuple[Range, ...], sympy.Symbol]] = []
        self.versions: dict[str, int] = {}
        self.unsynchronised: set[str] = set()
        self.uses_errors = any(step.op == "indirect" for body in kernel.bodies for step in body.instructions)
        self.full: Dims = NOTHING
        self.known = _symbol_bounds(kernel)
        self.limits, self.index_type = self._index_width()

    # Names and lines

    def name(self, wanted: str) -> str:
        """``wanted``, changed where the source already uses it for something else."""
        taken = wanted in RESERVED or wanted in function_names() or not wanted.isidentifier()
        return f"{wanted}_" if taken and wanted.isidentifier() else (f"v_{wanted}" if taken else wanted)

    def line(self, text: str) -> None:
        """Appends one statement."""
        self.lines.append("    " * self.indent + text)

    @property
    def index_cast(self) -> str:
        """The conversion of an int32 to the type of indices, where it is one."""
        return {"int32": "", "int64": ".to(tl.int64)", "dynamic": f".to({INDEX})"}[self.index_type]

    def _index_width(self) -> tuple[tuple[sympy.Expr, ...], str]:
        sizes = [sympy.sympify(buffer.numel) for buffer in self.kernel.buffers]
        sizes += [axis.extent for axis in self.tiling.axes]
        sizes.append(product(item.extent for item in (*self.tiling.batch, *self.kernel.ranges)))
        largest = max((bounds(expr, self.known)[1] for expr in indices(self.kernel)), default=0)
        static = [value for value in map(integer, sizes) if value is not None]
        if max(static, default=0) > INT32_LIMIT or (math.isfinite(largest) and largest > INT32_LIMIT):
            return (), "int64"
        symbolic = tuple(dict.fromkeys(expr for expr in sizes if integer(expr) is None))
        return symbolic, "dynamic" if symbolic else "int32"

    # Function

    def emit(self) -> str:
        """The text of the kernel function."""
        self._emit_axes()
        for body in self.kernel.bodies:
            self.full = frozenset(axis.name for axis in self.tiling.axes if axis.name != "r" or body.inner)
            if not body.inner:
                for step in body.instructions:
                    self.step(step)
                continue
            outer = dict(self.values)
            if self.tiling.config.persistent:
                results = persistent_reduction(self, body)
            else:
                results = loop_reduction(self, body)
            self.values = outer | results
        parameters = [self.name(buffer.name) for buffer in self.kernel.buffers]
        parameters += [self.name(size.name) for size in self.kernel.sizes]
        parameters += [ERRORS] if self.uses_errors else []
        parameters += [f"{INDEX}: tl.constexpr"] if self.index_type == "dynamic" else []
        blocks = [f"    {axis.block_name}: tl.constexpr = {axis.block}" for axis in self.tiling.axes]
        header = [DECORATOR, f"def {self.function}({', '.join(parameters)}):", *blocks]
        return "\n".join(header + self.lines) + "\n"

    def _emit_axes(self) -> None:
        for size in self.kernel.sizes:
            self.symbols[size] = Term(self.name(size.name), NOTHING, torch.int64)
        self._emit_program_axes([axis for axis in self.tiling.program_axes if axis.loops])
        reduction = self.tiling.reduction
        if reduction is not None and self.tiling.config.persistent:
            self._emit_axis(reduction, "")
        elif reduction is not None:
            self._mark(reduction)

    def _emit_program_axes(self, axes: list[Axis]) -> None:
        program = f"tl.program_id(0){self.index_cast}"
        if len(self.tiling.program_axes) == 1:
            for axis in axes:
                self._emit_axis(axis, f"{program} * {axis.block_name} + ")
            return
        self.line(f"program = {program}")
        divisor = ""
        for axis in reversed(axes):
            count = _blocks_text(self.index(axis.extent)[0], axis)
            place = f"program{divisor} % {count}" if axis is not axes[0] or self.tiling.batch else f"program{divisor}"
            self._emit_axis(axis, f"({place}) * {axis.block_name} + ")
            divisor += f" // {count}"
        self._emit_loops(self.tiling.batch, f"program{divisor}", "batch", NOTHING)

    def _emit_axis(self, axis: Axis, offset: str) -> None:
        expand = "" if axis.rank == 1 else ("[:, None]", "[None, :]")[axis.position]
        text = f"{offset}tl.arange(0, {axis.block_name}){expand}"
        if axis.name == "r" and self.index_cast:
            text = f"({text}){self.index_cast}" if offset else f"{text}{self.index_cast}"
        self._emit_loops(axis.loops, text, f"{axis.name}index", frozenset(axis.name))
        if axis.masked:
            self.line(f"{axis.name}mask = {self.position(axis)} < {self.index(axis.extent)[0]}")

    def position(self, axis: Axis) -> str:
        """The variable with the flat position along ``axis``."""
        return self.name(axis.loops[0].symbol.name) if len(axis.loops) == 1 else f"{axis.name}index"

    def reduction_header(self) -> None:
        """Defines the reduction's symbols at the top of its loop."""
        axis = self.tiling.reduction
        assert axis is not None
        self._emit_axis(axis, "rbase + ")

    def _mark(self, axis: Axis) -> None:
        for item in axis.loops:
            self.symbols[item.symbol] = Term(self.name(item.symbol.name), frozenset(axis.name), torch.int64)

    def _emit_loops(self, loops: tuple[Range, ...], text: str, flat: str, dims: Dims) -> None:
        if not loops:
            return
        names = [self.name(item.symbol.name) for item in loops]
        if len(loops) == 1:
            self.line(f"{names[0]} = {text}")
        else:
            self.line(f"{flat} = {text}")
            symbol = sympy.Symbol(flat, integer=True, nonnegative=True)
            self.symbols[symbol] = Term(flat, dims, torch.int64)
            self.flat_loops.append((loops, symbol))
            inner = sympy.Integer(1)
            for number, item in reversed(list(enumerate(loops))):
                part = flat if inner == 1 else f"{flat} // {self._factor(inner)}"
                if number:
                    part = f"{part} % {self._factor(item.extent)}"
                self.line(f"{names[number]} = {part}")
                inner = sympy.expand(inner * item.extent)
        for item, name in zip(loops, names):
            self.symbols[item.symbol] = Term(name, dims, torch.int64)

    def _factor(self, expr: sympy.Expr) -> str:
        text = self.index(expr)[0]
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    # Instructions

    def step(self, step: Instruction) -> None:
        """Emits one instruction other than ``reduce`` and ``scan``."""
        if step.op == "store":
            self._store(step)
            return
        assert step.result is not None and step.dtype is not None
        rule = getattr(self, f"_{step.op}", None)
        self.values[step.result] = rule(step) if rule is not None else self._elementwise(step)

    def operand(self, value: object) -> Term:
        """The term of an SSA operand."""
        assert isinstance(value, Value)
        return self.values[value.name]

    def define(self, wanted: str, text: str, dims: Dims, dtype: torch.dtype, key: object = None) -> Term:
        """Assigns ``text`` to a variable, unless the same expression already has one."""
        key = (text, dims) if key is None else key
        if key not in self.computed:
            name = self.name(wanted)
            self.line(f"{name} = {text}")
            self.computed[key] = Term(name, dims, dtype)
        return self.computed[key]

    def index(self, expr: sympy.Expr) -> tuple[str, Dims, list[Term]]:
        """The text of an index, its dims, and the indirect symbols in it."""
        expr = self._by_flat_position(sympy.sympify(expr))
        terms = [self.symbols[symbol] for symbol in sorted(expr.free_symbols, key=str)]  # type: ignore[index]
        dims = NOTHING.union(*(term.dims for term in terms))
        text = IndexPrinter(self.known, lambda symbol: self.symbols[symbol].text).show(expr)
        return text, dims, [term for term in terms if term.valid is not None]

    def _by_flat_position(self, expr: sympy.Expr) -> sympy.Expr:
        """``expr`` over the flat position of an axis, where it is linear in that, and not its loops: contiguity shows then."""
        for loops, flat in self.flat_loops:
            factor = stride(expr, loops[-1].symbol)
            if not factor:
                continue
            rest = sympy.expand(expr - factor * flat_position(loops))
            if not rest.free_symbols & {item.symbol for item in loops}:
                expr = rest + factor * flat
        return expr

    def shape(self, dims: Dims) -> str:
        """The block shape of something that varies along ``dims``."""
        return "[" + ", ".join(axis.block_name if axis.name in dims else "1" for axis in self.tiling.axes) + "]"

    def expanded(self, text: str, dims: Dims, wanted: Dims) -> str:
        """``text`` broadcast from ``dims`` to ``wanted``."""
        if dims == wanted and dims:
            return text
        if text.lstrip("-").isdigit():
            return f"tl.full({self.shape(wanted)}, {text}, tl.int32)"
        return f"tl.broadcast_to({text}, {self.shape(wanted)})"

    def masks(self, dims: Dims) -> list[str]:
        """The masks of the blocks along ``dims``."""
        return [f"{axis.name}mask" for axis in self.tiling.axes if axis.name in dims and axis.loops and axis.masked]

    def _pointer(self, buffer: str, index: str) -> str:
        return self.name(buffer) if index == "0" else f"{self.name(buffer)} + {index}"

    def _load(self, step: Instruction) -> Term:
        buffer, expr, mask, other = step.args
        assert isinstance(buffer, str) and isinstance(expr, sympy.Expr) and step.dtype is not None and step.result is not None
        text, dims, indirect = self.index(expr)
        guards = [Term(term.valid, term.dims, torch.bool) for term in indirect if term.valid is not None]
        guards += [self.operand(mask)] if mask is not None else []
        wanted = dims.union(*(guard.dims for guard in guards))
        if wanted != dims:
            text = self.expanded(text, dims, wanted)
        masks = self.masks(wanted) + [guard.text for guard in guards]
        arguments = [self._pointer(buffer, text)]
        arguments += [f"mask={' & '.join(masks)}"] if masks else []
        arguments += [f"other={ops.format_constant(other, step.dtype)}"] if mask is not None else []
        self._synchronise(buffer)
        key = ("load", *arguments, self.versions.get(buffer, 0))
        return self.define(step.result, f"tl.load({', '.join(arguments)})", wanted, step.dtype, key)

    def _synchronise(self, buffer: str) -> None:
        # Another thread of the block may have stored what this one loads: layouts differ from access to access.
        if buffer in self.unsynchronised:
            self.line("tl.debug_barrier()")
            self.unsynchronised.clear()

    def _store(self, step: Instruction) -> None:
        buffer, expr, value, mode = step.args
        assert isinstance(buffer, str) and isinstance(expr, sympy.Expr)
        text, dims, indirect = self.index(expr)
        guards = [term.valid for term in indirect if term.valid is not None]
        pointer = self._pointer(buffer, self.expanded(text, dims, self.full))
        masks = self.masks(self.full) + guards
        mask = f", mask={' & '.join(masks)}" if masks else ""
        term = self.operand(value)
        if mode == "add":
            addend = term.text if term.dims == self.full else self.expanded(term.text, term.dims, self.full)
            self.line(f'tl.atomic_add({pointer}, {addend}{mask}, sem="relaxed")')
        else:
            self.line(f"tl.store({pointer}, {term.text}{mask})")
        self.versions[buffer] = self.versions.get(buffer, 0) + 1
        self.unsynchronised.add(buffer)

    def _constant(self, step: Instruction) -> Term:
        assert step.dtype is not None
        text = ops.constant_text(step.args[0], step.dtype)
        return Term(text, NOTHING, step.dtype, literal=ops.format_constant(step.args[0], step.dtype))

    def _index_expr(self, step: Instruction) -> Term:
        assert isinstance(step.args[0], sympy.Expr) and step.dtype is not None and step.result is not None
        text, dims, _ = self.index(step.args[0])
        if integer(step.args[0]) is not None:
            return self._constant(replace(step, args=(integer(step.args[0]),)))
        source = text if text.isidentifier() else f"({text})"
        if step.dtype in (torch.int32, torch.int64):
            converted = f"{source}.to({ops.TRITON_DTYPES[step.dtype]})"
        else:
            converted = ops.cast(source, torch.int32, step.dtype)
        return self.define(step.result, converted, dims, step.dtype)

    def _indirect(self, step: Instruction) -> Term:
        value, size = step.args
        assert isinstance(size, sympy.Expr) and step.result is not None
        term = self.operand(value)
        text = term.text
        valid = self.define(f"{step.result}_valid", f"({text} >= 0) & ({text} < {self.index(size)[0]})", term.dims, torch.bool)
        masks = [f"({valid.text} == 0)", *self.masks(term.dims)]
        self.line(f"tl.store({ERRORS} + {valid.text}.to(tl.int32) * 0, 1, mask={' & '.join(masks)})")
        narrowed = f"{text}{self.index_cast or '.to(tl.int32)'}"
        found = self.define(step.result, narrowed, term.dims, torch.int64)
        symbol = next((s for s in self._free_symbols() if s.name == step.result), sympy.Symbol(step.result))
        result = replace(found, valid=valid.text)
        self.symbols[symbol] = result
        return result

    def _free_symbols(self) -> set[sympy.Symbol]:
        return {symbol for expr in indices(self.kernel) for symbol in expr.free_symbols}  # type: ignore[misc]

    def _cast(self, step: Instruction) -> Term:
        assert step.dtype is not None and step.result is not None
        term = self.operand(step.args[0])
        if term.dtype == step.dtype:
            return term
        return self.define(step.result, ops.cast(term.text, term.dtype, step.dtype), term.dims, step.dtype)

    def _bitcast(self, step: Instruction) -> Term:
        assert step.dtype is not None and step.result is not None
        term = self.operand(step.args[0])
        text = f"{term.text}.to({ops.TRITON_DTYPES[step.dtype]}, bitcast=True)"
        return self.define(step.result, text, term.dims, step.dtype)

    def _elementwise(self, step: Instruction) -> Term:
        assert step.dtype is not None and step.result is not None
        terms = [self.operand(arg) for arg in step.args]
        dims = NOTHING.union(*(term.dims for term in terms))
        inline = step.op in ops.INFIX and any(term.literal is None for term in terms)
        texts = [term.literal if inline and term.literal is not None else term.text for term in terms]
        text = ops.elementwise(step.op, terms[-1].dtype, texts)
        return self.define(step.result, text, dims, step.dtype)


def _blocks_text(extent: str, axis: Axis) -> str:
    number = integer(axis.extent)
    if number is not None:
        return str(-(-number // axis.block))
    return f"(({extent} + {axis.block - 1}) // {axis.block})"


def _symbol_bounds(kernel: Kernel) -> dict[sympy.Symbol, tuple[float, float]]:
    known: dict[sympy.Symbol, tuple[float, float]] = {}
    for item in (*kernel.ranges, *kernel.reduction):
        extent = integer(item.extent)
        known[item.symbol] = (0, math.inf if extent is None else max(extent - 1, 0))
    return known
