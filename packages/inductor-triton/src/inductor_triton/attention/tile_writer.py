"""What the three kernels of attention share: arguments, positions, loads, block lists, scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from loopir import KernelBuffer, KernelSource, symbol

from inductor_triton.kernels.codegen import assemble, describe_launch, function_text
from inductor_triton.kernels.emitter import NOTHING, Emitter, Term
from inductor_triton.kernels.heuristics import next_power_of_two
from inductor_triton.kernels.kernel_plan import KernelPlan
from inductor_triton.kernels.ops import TRITON_DTYPES
from inductor_triton.spec import ERRORS, Config

from .function_writer import (
    OUTSIDE,
    FunctionWriter,
    M,
    N,
    argument_kernel,
    size_name,
    tile_tiling,
)
from .problem import SMALLEST, Problem

LOG2E = 1 / math.log(2)
SHARED_SIZES = ("batches", "heads", "groups", "m_length", "n_length")
MASK_SIZES = ("mask_batch", "mask_head", "mask_width")
LISTS = ("counts", "indices", "full_counts", "full_indices")
LOCALS = (
    "m", "n", "d", "e", "mmask", "nmask", "dmask", "emask", "mfirst", "nfirst", "batch", "head",
    "kv_head", "pair", "tile", "tiles", "row", "count", "step", "block", "query_tile", "key_tile",
    "value_tile", "grad_tile", "products", "score", "logits", "weights", "slope", "top", "total",
    "base", "new", "keep", "acc", "sums_row", "delta_row", "dk", "dv", "dq", "group", "b", "h",
    "delta", "visible", "valid", "outside", "part", "place", "last", "share",
    "MBLOCK", "NBLOCK", "DBLOCK", "EBLOCK",
    *(
        f"{name}_{what}"
        for name in ("query", "key", "value", "out", "grad", "dq", "dk", "dv")
        for what in ("base", "rows")
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of rows: its name, the axis of its rows, and that of a row's elements (``d`` of
    query and key, ``e`` of value). ``heads`` names the variable with its head.
    """

    name: str
    rows: str
    columns: str
    heads: str

    @property
    def strides(self) -> tuple[str, str, str]:
        """The arguments with the strides of batches, heads and rows."""
        return tuple(f"{self.name}_{dim}" for dim in ("batch", "head", "row"))  # type: ignore[return-value]


QUERY = Operand("query", M, "d", "head")
KEY = Operand("key", N, "d", "kv_head")
VALUE = Operand("value", N, "e", "kv_head")
OUT = Operand("out", M, "e", "head")
GRAD = Operand("grad", M, "e", "head")
DQ = Operand("dq", M, "d", "head")
DK = Operand("dk", N, "d", "kv_head")
DV = Operand("dv", N, "e", "kv_head")


class TileWriter:
    """Writes one kernel. ``order``: the axes of a tile of scores, rows first; the program's own
    axis is the first, and the kernel loops over the ``inner`` one.
    """

    name: str
    order: str
    operands: tuple[Operand, ...]
    vectors: tuple[tuple[str, str], ...] = ()
    """float32 tensors of one number per query, with their roles."""
    written: tuple[str, ...]
    head_axes: frozenset[str] = NOTHING
    """The axes of a tile along which query heads vary."""

    def __init__(self, problem: Problem, config: Config) -> None:
        self.problem, self.config = problem, config
        self.blocks: dict[str, int] = {M: config.y, N: config.x}
        self.inner = self.order[1]
        listed = LISTS if problem.has_full else LISTS[:2]
        self.lists: tuple[str, ...] = listed if problem.blocks is not None else ()
        kernel = argument_kernel(self.name, self._buffers(), self.sizes())
        tiling = tile_tiling(self.order, self.blocks, config)
        limits = self._limits()
        plan = KernelPlan(kernel, tiling, (), "dynamic", limits)
        self.whole = Emitter(plan)
        self.whole.taken |= dict.fromkeys(LOCALS, 0)
        whole_axes = {M: problem.whole_rows, N: problem.whole_columns}
        self.whole.unmasked = frozenset(axis for axis, is_whole in whole_axes.items() if is_whole)
        self.line: Callable[[str], None] = self.whole.line
        self.described: set[str] = set()
        self.checks = False

    # Arguments

    def _buffers(self) -> list[tuple[str, torch.dtype, str]]:
        dtype = self.problem.dtype
        found = [
            (item.name, dtype, "out" if item.name in self.written else "in")
            for item in self.operands
        ]
        found += [(name, torch.float32, role) for name, role in self.vectors]
        found += [(name, torch.int32, "in") for name in self.lists]
        captured = enumerate(self.problem.captured)
        return found + [(f"captured{i}", kind, "in") for i, (kind, _) in captured]

    def sizes(self) -> tuple[str, ...]:
        """The names of the integer arguments."""
        strides = [name for item in self.operands for name in item.strides]
        captured = [
            size_name(f"captured{i}", dim)
            for i, (_, sizes) in enumerate(self.problem.captured)
            for dim, size in enumerate(sizes)
            if size is None
        ]
        mask = MASK_SIZES if self.lists else ()
        return (*SHARED_SIZES, *strides, *mask, *captured)

    def _limits(self) -> tuple[sympy.Expr, ...]:
        """What must fit 32 bits for indices of 32 bits; heads begin at addresses of 64 bits."""
        found: list[sympy.Expr] = [symbol(name) for name in self.sizes()]
        found += [symbol(f"{x.rows}_length") * symbol(x.strides[2]) for x in self.operands]
        found.append(symbol("batches") * symbol("heads") * symbol("m_length"))
        for i, (_, sizes) in enumerate(self.problem.captured):
            dims = [symbol(size_name(f"captured{i}", d)) for d, n in enumerate(sizes) if n is None]
            found.append(sympy.Mul(*dims))
        return tuple(found)

    def source(self, programs: sympy.Expr) -> KernelSource:
        """The kernel of the lines so far; ``programs``: for each tile of the first axis."""
        constants = {
            "MBLOCK": self.blocks[M], "NBLOCK": self.blocks[N],
            "DBLOCK": self.columns("d")[1], "EBLOCK": self.columns("e")[1],
        }  # fmt: skip
        text = assemble((), self.config, function_text(self.whole, constants))
        own = self.order[0]
        tiles = (symbol(f"{own}_length"), self.blocks[own])
        spec = describe_launch(self.whole, (tiles,), programs)
        kernel = self.whole.kernel
        if self.described:  # the caller passes memory for them
            workspace = KernelBuffer("descriptors", torch.uint8, "out", sympy.Integer(1))
            kernel = replace(kernel, buffers=(*kernel.buffers, workspace))
            config = replace(self.config, tma=False)
            signature = (*spec.signature, "*u8")
            spec = replace(spec, signature=signature, workspace=True, config=config)
        return KernelSource(kernel, text, (("launch", spec),))

    # Positions

    def columns(self, axis: str) -> tuple[int, int]:
        """The number of elements of a row, and the block that holds them."""
        size = self.problem.depth if axis == "d" else self.problem.width
        return size, max(next_power_of_two(size), SMALLEST)

    def start(self, heads: str) -> None:
        """Writes the program's tile: tiles of one head follow each other, longest loops first."""
        own, block = self.order[0], f"{self.order[0].upper()}BLOCK"
        self.line("program = tl.program_id(0)")
        # lengths are below 2**31 also where strides are not
        self.line(f"tiles = (({own}_length + {block} - 1) // {block}).to(tl.int32)")
        self.line("pair = program // tiles")
        order = "tiles - 1 - program % tiles" if own == M else "program % tiles"
        self.line(f"tile = {order}")
        self.line(f"batch = pair // {heads}")
        self.line(f"{'head' if own == M else 'kv_head'} = pair % {heads}")
        if own == M:
            self.line("kv_head = head // groups" if self.problem.is_grouped else "kv_head = head")
        for axis in "de":
            self.place_columns(axis)
        self.line(f"{own}first = tile * {block}")
        self.place(own)

    def place_columns(self, axis: str) -> None:
        """Writes the positions of a row's elements."""
        size, block = self.columns(axis)
        self.line(f"{axis} = tl.arange(0, {axis.upper()}BLOCK)[None, :]")
        if size != block:
            self.line(f"{axis}mask = {axis} < {size}")

    def place(self, axis: str) -> None:
        """Writes the positions along an axis of a tile that begins at ``<axis>first``."""
        expand = "[:, None]" if axis == self.order[0] else "[None, :]"
        self.line(f"{axis} = {axis}first + tl.arange(0, {axis.upper()}BLOCK){expand}")
        if axis not in self.whole.unmasked:
            self.line(f"{axis}mask = {axis} < {axis}_length")

    def base(self, item: Operand) -> None:
        """Writes where the rows of the program's batch and head begin."""
        batch, head, _ = item.strides
        self.line(
            f"{item.name}_base = {item.name} + batch.to(tl.int64) * {batch} + "
            f"{item.heads}.to(tl.int64) * {head}"
        )

    def rows(self, item: Operand) -> tuple[str, str]:
        """Pointers to a tile of rows, and their mask."""
        axis, columns = item.rows, item.columns
        place = f"({axis}first + tl.arange(0, {axis.upper()}BLOCK))[:, None]"
        pointers = f"{item.name}_base + {place}.to(INDEX) * {item.strides[2]} + {columns}"
        masks = [] if axis in self.whole.unmasked else [f"({place} < {axis}_length)"]
        if self.columns(columns)[0] != self.columns(columns)[1]:
            masks.append(f"{columns}mask")
        return pointers, " & ".join(masks)

    def describe(self, item: Operand) -> None:
        """Writes a descriptor of an operand's rows, if the copy engine fetches them."""
        if not self.config.tma:
            return
        axis, (size, _) = item.rows, self.columns(item.columns)
        shape = f"[{axis}_length.to(tl.int32), {size}], [{item.strides[2]}.to(tl.int64), 1]"
        block = f"[{axis.upper()}BLOCK, {item.columns.upper()}BLOCK]"
        self.line(
            f"{item.name}_rows = tl.make_tensor_descriptor({item.name}_base, {shape}, {block})"
        )
        self.described.add(item.name)

    def load(self, item: Operand) -> str:
        """A tile of rows; zero beyond the ends."""
        if item.name in self.described:
            return f"{item.name}_rows.load([{item.rows}first, 0])"
        pointers, mask = self.rows(item)
        return f"tl.load({pointers}{f', mask={mask}, other=0.0' if mask else ''})"

    def store(self, item: Operand, value: str) -> None:
        """Stores a tile of rows."""
        pointers, mask = self.rows(item)
        dtype = TRITON_DTYPES[self.problem.dtype]
        self.line(f"tl.store({pointers}, ({value}).to({dtype}){f', mask={mask}' if mask else ''})")

    def vector(self, name: str) -> str:
        """Pointers to one number per query of the program's head."""
        return f"{name} + (batch * heads + head).to(INDEX) * m_length + m"

    def dot(self, left: str, right: str, total: str | None = None) -> str:
        """A product of tiles."""
        exact = self.problem.dtype is torch.float32
        mode = "ieee" if self.problem.exact else "tf32"
        precision = f", input_precision='{mode}'" if exact else ""
        return f"tl.dot({left}, {right}{f', {total}' if total else ''}{precision})"

    def narrowed(self, value: str) -> str:
        """A tile in the dtype of the operands."""
        return f"{value}.to({TRITON_DTYPES[self.problem.dtype]})"

    # Functions

    def functions(self, *names: str) -> dict[str, FunctionWriter]:
        """The writers of those of the problem's functions; writes what is outside of loops."""
        own = self.order[0]
        self.line("b = batch.to(tl.int32)")
        self.line("h = head.to(tl.int32)")
        given = {
            "b": Term("b", NOTHING, torch.int32),
            "h": Term("h", self.head_axes, torch.int32),
            "q": Term("m", frozenset(M), torch.int32),
            "k": Term("n", frozenset(N), torch.int32),
        }
        self.whole.body_dims = frozenset(own)
        lowered = self.problem.lowered
        made = {
            name: FunctionWriter(self.whole, lowered[name], given, self.inner)
            for name in names
            if name in lowered
        }
        for writer in made.values():
            writer.before_loop()
        self.checks = any(writer.looks_up for writer in made.values())
        if self.checks:
            self.line(f"{OUTSIDE} = tl.full([{own.upper()}BLOCK], 0, tl.int32)")
        return made

    def report(self) -> None:
        """Writes, after the loops, whether an index was out of range."""
        if self.checks:
            self.line(f"tl.store({ERRORS} + {OUTSIDE} * 0, 1, mask={OUTSIDE} != 0)")

    def tile_term(self, text: str) -> Term:
        """A float32 value of each score."""
        return Term(text, frozenset(self.order), torch.float32)

    def spread(self, term: Term) -> str:
        """A function's result on the whole tile."""
        return self.whole.expanded(term.text, term.dims, frozenset(self.order))

    # Loops

    def loops(self, body: Callable[[bool], None]) -> None:
        """Writes the loops over the tiles along the inner axis: those of partial blocks, then of
        full ones. ``body(partial)`` writes one tile; ``partial``: whether the mask function counts.
        """
        inner = self.inner
        upper = inner.upper()
        if self.problem.blocks is None:
            self.line(f"count = (({inner}_length + {upper}BLOCK - 1) // {upper}BLOCK).to(tl.int32)")
            self.line("for step in tl.range(0, count):")
            self._tile(f"step * {upper}BLOCK", lambda: body(True))
            return
        sizes: dict[str, int] = dict(zip((M, N), self.problem.blocks))
        own_size, inner_size = sizes[self.order[0]], sizes[inner]
        steps = inner_size // self.blocks[inner]
        self.line(
            f"row = batch * mask_batch + head * mask_head + {self.order[0]}first // {own_size}"
        )
        for number in range(0, len(self.lists), 2):
            counts, indices = self.lists[number : number + 2]
            self.line(f"count = tl.load({counts} + row) * {steps}")
            self.line("for step in tl.range(0, count):")
            self.whole.indent += 1
            which = "step" if steps == 1 else f"step // {steps}"
            self.line(f"block = tl.load({indices} + row.to(INDEX) * mask_width + {which})")
            self.whole.indent -= 1
            rest = "" if steps == 1 else f" + step % {steps} * {upper}BLOCK"
            self._tile(f"block * {inner_size}{rest}", lambda n=number: body(n == 0))

    def _tile(self, first: str, body: Callable[[], None]) -> None:
        self.whole.indent += 1
        self.line(f"{self.inner}first = {first}")
        self.place(self.inner)
        body()
        self.whole.indent -= 1

    def logits(
        self, functions: dict[str, FunctionWriter], partial: bool, hides: Sequence[str] = ()
    ) -> Term | None:
        """Writes ``logits`` from ``products``: times ``factor``, the scores in base 2. ``hides``:
        further masks. Returns the mask function's term.
        """
        if "score" in functions:
            self.line(f"score = products * {self.problem.scale!r}")
            found = functions["score"].in_loop({"score": self.tile_term("score")})
            self.line(f"logits = {self.spread(found)}")
        else:
            self.line("logits = products")
        masks, term = list(hides), None
        if partial and "mask" in functions:
            term = functions["mask"].in_loop({})
            masks.append(term.text)
        if masks:
            self.line(f"logits = tl.where({' & '.join(masks)}, logits, -float('inf'))")
        return term

    @property
    def factor(self) -> float:
        """Multiplied late, so that it is part of a subtraction's instruction."""
        return LOG2E if "score" in self.problem.lowered else self.problem.scale * LOG2E

    @property
    def can_hide(self) -> bool:
        """Whether a whole row of a tile can be hidden."""
        return bool(self.problem.lowered) or self.problem.blocks is not None
