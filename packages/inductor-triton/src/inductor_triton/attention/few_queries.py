"""Kernels for few queries, such as one per head while a model generates text: a program per head
would leave most of the device idle, and heads that share a key head would each read it.

The first kernel has a program per key head and part of the keys. Its tile has a row for each query
of each head that shares the key head. It stores, per row and part, the weighted sum of the values,
the largest score, and the sum of the weights; the second kernel combines the parts of a row.
Scores stay in base e until the largest one is subtracted: masks may add the lowest number of a
dtype, which times log2(e) would be infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import sympy
import torch
from loopir import FloorDiv, KernelSource, symbol

from inductor_triton.kernels.heuristics import MULTIPROCESSORS, next_power_of_two
from inductor_triton.spec import Config

from .function_writer import FunctionWriter, M, N
from .problem import SMALLEST, Problem
from .running import Call, Kernels
from .tile_writer import KEY, LOG2E, OUT, QUERY, VALUE, TileWriter

MOST_ROWS = 64
PROGRAMS = 2 * MULTIPROCESSORS
"""The most programs among which the keys are divided."""
SHARE = 64
"""Keys of a part are a multiple of this."""
FEWEST_KEYS = 8 * SHARE
"""For functions: below it, the second launch is expected to take longer than the steps it saves."""
PARTS = 32
"""Parts of a step of the second kernel."""
PARTIAL = ("shares", "tops", "totals")
"""Per row and part: the weighted sum of values, the largest score, the sum of weights."""
MASK_STRIDES = ("bias_batch", "bias_head", "bias_row", "bias_column")
CAUSAL = """\
def mask(b: i32[1, 1, 1, 1], h: i32[1, 1, 1, 1], q: i32[1, 1, 1, 1], k: i32[1, 1, 1, 1]):
    ge: bool[1, 1, 1, 1] = ops.aten.ge.Tensor(q, k)
    return (ge,)
"""


@dataclass(frozen=True, slots=True)
class FewQueries:
    """What the kernels' text depends on.

    Attributes:
        problem: functions, dtype and sizes of rows; its ``whole_rows`` and ``whole_columns`` are
            False, so that there is one text for all lengths.
        rows: rows of a tile, a power of two.
        mask: the dtype of a mask: of bools, or of numbers to add; None without one.
        by_row: whether the mask differs between the rows of a tile.
    """

    problem: Problem
    rows: int
    mask: torch.dtype | None = None
    by_row: bool = False


class _Parts(TileWriter):
    name = "attention_parts"
    order = M + N
    operands = (QUERY, KEY, VALUE)
    vectors = tuple((name, "out") for name in PARTIAL)
    written = ()
    head_axes = frozenset(M)

    def __init__(self, few: FewQueries, config: Config) -> None:
        self.few = few
        super().__init__(few.problem, replace(config, y=few.rows))

    def _buffers(self) -> list[tuple[str, torch.dtype, str]]:
        mask = [] if self.few.mask is None else [("bias", self.few.mask, "in")]
        return [*super()._buffers(), *mask]

    def sizes(self) -> tuple[str, ...]:
        strides = () if self.few.mask is None else MASK_STRIDES
        return (*super().sizes(), *strides, "parts", "share")

    def _limits(self) -> tuple[sympy.Expr, ...]:
        found = [*super()._limits(), _elements(self.problem.width)]
        if self.few.mask is not None:
            lengths = [symbol(name) for name in ("batches", "heads", "m_length", "n_length")]
            found += [length * symbol(step) for length, step in zip(lengths, MASK_STRIDES)]
        return tuple(found)

    def write(self) -> KernelSource:
        self._place_rows()
        for item in (KEY, VALUE):
            self.base(item)
        self.line("query_base = query + batch.to(tl.int64) * query_batch")
        self.line(
            "query_rows = query_base + head.to(tl.int64) * query_head + m.to(INDEX) * query_row"
        )
        self.line(f"query_tile = tl.load(query_rows + d, mask={self._masked('d')}, other=0.0)")
        self.line("top = tl.full([MBLOCK], -float('inf'), tl.float32)")
        self.line("total = tl.full([MBLOCK], 0.0, tl.float32)")
        self.line("acc = tl.full([MBLOCK, EBLOCK], 0.0, tl.float32)")
        functions = self.functions("score", "mask")
        self.line("last = tl.minimum((part + 1) * share, n_length).to(tl.int32)")
        self.line("for nfirst in tl.range((part * share).to(tl.int32), last, NBLOCK):")
        self.whole.indent += 1
        self.place(N)
        self._tile_of_keys(functions)
        self.whole.indent -= 1
        self.report()
        place = "place = ((batch * heads + head).to(INDEX) * m_length + m) * parts + part"
        self.line(place)
        width = self.problem.width
        self.line(f"tl.store(shares + place * {width} + e, acc, mask={self._masked('e')})")
        self.line("tl.store(tops + place, top[:, None], mask=mmask)")
        self.line("tl.store(totals + place, total[:, None], mask=mmask)")
        kv_heads = FloorDiv(symbol("heads"), symbol("groups"))
        return self.source(symbol("batches") * kv_heads * symbol("parts"))

    def _place_rows(self) -> None:
        """Writes the program's part and key head, and the query and head of each row."""
        self.line("program = tl.program_id(0)")
        self.line("part = (program % parts).to(tl.int32)")
        self.line("pair = (program // parts).to(tl.int32)")
        self.line("batch = (pair // (heads // groups)).to(tl.int32)")
        self.line("kv_head = (pair % (heads // groups)).to(tl.int32)")
        self.line("row = tl.arange(0, MBLOCK)[:, None]")
        self.line("m = (row % m_length).to(tl.int32)")
        self.line("head = (kv_head * groups + row // m_length).to(tl.int32)")
        self.line("mmask = row < groups * m_length")
        for axis in "de":
            self.place_columns(axis)

    def _masked(self, axis: str) -> str:
        size, block = self.columns(axis)
        return f"mmask & {axis}mask" if size != block else "mmask"

    def _tile_of_keys(self, functions: dict[str, FunctionWriter]) -> None:
        self.line(f"key_tile = {self.load(KEY)}")
        self.line(f"value_tile = {self.load(VALUE)}")
        if self.few.mask is not None:  # before the product, which hides the time of the load
            self.line(f"bias_tile = {self._mask_tile()}")
        self.line(f"products = {self.dot('query_tile', 'tl.trans(key_tile)')}")
        hides = ["nmask"]
        if "score" not in functions:
            self.line(f"products = products * {self.problem.scale!r}")
        if self.few.mask is torch.bool:
            hides.append("bias_tile")
        elif self.few.mask is not None:
            self.line("products = products + bias_tile.to(tl.float32)")
        self.logits(functions, True, hides)
        self.line("new = tl.maximum(top, tl.reduce(logits, 1, combine_max))")
        self.line("base = tl.where(new == -float('inf'), 0.0, new)")
        self.line(f"weights = tl.exp2((logits - base[:, None]) * {LOG2E!r})")
        self.line(f"keep = tl.exp2((top - base) * {LOG2E!r})")
        self.line("total = total * keep + tl.reduce(weights, 1, combine_sum)")
        self.line("acc = acc * keep[:, None]")
        self.line(f"acc = {self.dot(self.narrowed('weights'), 'value_tile', 'acc')}")
        self.line("top = new")

    def _mask_tile(self) -> str:
        """The load of the mask: a row of it serves all rows of the tile if they have the same."""
        place = "bias + batch.to(tl.int64) * bias_batch + n.to(INDEX) * bias_column"
        mask = "nmask"
        if self.few.by_row:
            place += " + head.to(INDEX) * bias_head + m.to(INDEX) * bias_row"
            mask = "mmask & nmask"
        return f"tl.load({place}, mask={mask}, other={0 if self.few.mask is torch.bool else 0.0})"


class _Combined(TileWriter):
    """A program combines the parts of one row; they are the N axis."""

    name = "attention_combined"
    order = M + N
    operands = (OUT,)
    vectors = (*((name, "in") for name in PARTIAL), ("sums", "out"))
    written = ("out",)

    def __init__(self, few: FewQueries, config: Config) -> None:
        super().__init__(few.problem, replace(config, x=PARTS, y=1))

    def _buffers(self) -> list[tuple[str, torch.dtype, str]]:
        dtype = self.problem.dtype
        return [
            ("out", dtype, "out"),
            *((name, torch.float32, role) for name, role in self.vectors),
        ]

    def sizes(self) -> tuple[str, ...]:
        return ("batches", "heads", "m_length", *OUT.strides, "n_length")

    def _limits(self) -> tuple[sympy.Expr, ...]:
        sizes = [symbol(name) for name in self.sizes()]
        elements = _elements(self.problem.width, "n_length")
        return (*sizes, symbol("m_length") * symbol("out_row"), elements)

    def write(self) -> KernelSource:
        self.line("program = tl.program_id(0)")
        self.line("m = (program % m_length).to(tl.int32)")
        self.line("pair = program // m_length")
        self.line("batch = pair // heads")
        self.line("head = pair % heads")
        self.place_columns("e")
        self.base(OUT)
        self.line("top = tl.full([1], -float('inf'), tl.float32)")
        self.line("total = tl.full([1], 0.0, tl.float32)")
        self.line("acc = tl.full([EBLOCK], 0.0, tl.float32)")
        self.line("for nfirst in tl.range(0, n_length.to(tl.int32), NBLOCK):")
        self.whole.indent += 1
        self._parts_of_row()
        self.whole.indent -= 1
        self.line("valid = total != 0.0")
        self.line("acc = acc / tl.where(valid, total, 1.0)")
        size, block = self.columns("e")
        mask = "" if size == block else ", mask=emask"
        out = "out_base + m.to(INDEX) * out_row + e"
        self.line(f"tl.store({out}, {self.narrowed('acc[None, :]')}{mask})")
        logarithm = f"top + tl.log2(total) * {math.log(2)!r}"
        self.line(f"top = tl.where(valid, {logarithm}, -float('inf'))")
        self.line("tl.store(sums + program.to(INDEX) + tl.arange(0, 1), top)")
        return self.source(symbol("batches") * symbol("heads"))

    def _parts_of_row(self) -> None:
        size, block = self.columns("e")
        masks = "nmask" if size == block else "nmask & emask"
        self.line("n = nfirst + tl.arange(0, NBLOCK)[:, None]")
        self.line("nmask = n < n_length")
        self.line("place = program.to(INDEX) * n_length + n")
        self.line("part_top = tl.load(tops + place, mask=nmask, other=-float('inf'))")
        self.line("part_total = tl.load(totals + place, mask=nmask, other=0.0)")
        self.line(f"share = tl.load(shares + place * {size} + e, mask={masks}, other=0.0)")
        self.line("new = tl.maximum(top, tl.reduce(part_top, 0, combine_max))")
        self.line("base = tl.where(new == -float('inf'), 0.0, new)")
        self.line(f"weights = tl.exp2((part_top - base[:, None]) * {LOG2E!r})")
        self.line(f"keep = tl.exp2((top - base) * {LOG2E!r})")
        self.line("total = total * keep + tl.reduce(weights * part_total, 0, combine_sum)")
        self.line("acc = acc * keep + tl.reduce(weights * share, 0, combine_sum)")
        self.line("top = new")


def _elements(width: int, parts: str = "parts") -> sympy.Expr:
    """The number of elements of ``shares``."""
    names = ("batches", "heads", "m_length", parts)
    return sympy.Mul(*map(symbol, names), width)


def generate_parts(few: FewQueries, config: Config) -> KernelSource:
    """The Triton source of the first kernel, with tiles of ``config.x`` keys, which divides
    ``SHARE``.
    """
    return _Parts(few, config).write()


def generate_combined(few: FewQueries, config: Config) -> KernelSource:
    """The Triton source of the second kernel."""
    return _Combined(few, config).write()


def parts_configuration(problem: Problem) -> Config:
    """The tile of the first kernel: less for long rows, and for numbers of 32 bits."""
    size = max(problem.depth, problem.width) * problem.dtype.itemsize
    return Config(x=SHARE if size <= 512 else SHARE // 2, num_stages=3 if size <= 256 else 2)


def divided(pairs: int, keys: int) -> tuple[int, int]:
    """The number of parts and of keys per part for a number of pairs of batch and key head."""
    tiles = -(-keys // SHARE)
    steps = -(-tiles // max(PROGRAMS // pairs, 1))
    return -(-tiles // steps), steps * SHARE


def has_few_queries(call: Call) -> bool:
    """Whether a program per head and tile of queries would leave multiprocessors idle while it goes
    over many keys.
    """
    batch, heads, queries, _ = call.query.shape
    rows = queries * (heads // call.key.shape[1])
    return (
        not call.blocks
        and rows <= MOST_ROWS
        and batch * heads < MULTIPROCESSORS
        and call.key.shape[2] >= FEWEST_KEYS
    )


def run_few(
    call: Call, mask: torch.Tensor | None, kernels: Kernels, out: torch.Tensor, sums: torch.Tensor
) -> None:
    """Computes the output and the logarithms of the sums of exponentials. ``mask``: bools or
    numbers to add, broadcast to all scores.
    """
    batch, heads, queries, _ = call.query.shape
    kv_heads, keys = call.key.shape[1:3]
    steps = [] if mask is None else [*_broadcast_strides(mask, (batch, heads, queries, keys))]
    rows = max(next_power_of_two(queries * (heads // kv_heads)), SMALLEST)
    problem = replace(
        call.problem, whole_rows=False, whole_columns=False, is_grouped=True, engine=False
    )
    dtype = None if mask is None else mask.dtype
    few = FewQueries(problem, rows, dtype, any(steps[1:3]))
    parts, share = divided(batch * kv_heads, keys)
    shares = out.new_empty((batch, heads, queries, parts, problem.width), dtype=torch.float32)
    tops, totals = shares.new_empty((2, *shares.shape[:-1])).unbind()
    partial_results = (shares, tops, totals)
    operands = (call.query, call.key, call.value)
    config, masks = parts_configuration(problem), () if mask is None else (mask,)
    kernels.launch(
        ("parts", few), partial(generate_parts, few), config,
        [*operands, *partial_results, *call.captured, *masks],
        [*call.sizes(operands, ()), *steps, parts, share],
    )  # fmt: skip
    kernels.launch(
        ("combined", few), partial(generate_combined, few), Config(x=PARTS),
        [out, *partial_results, sums],
        [batch, heads, queries, *out.stride()[:3], parts],
    )  # fmt: skip


def _broadcast_strides(mask: torch.Tensor, shape: tuple[int, ...]) -> Iterator[int]:
    for size, step in zip(shape, mask.expand(shape).stride()):
        yield 0 if size == 1 else step
