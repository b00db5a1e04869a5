"""Writes score and mask functions on a tile with the emitter of loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch
from loopir import Instruction, Kernel, KernelBuffer, Range, definitions, symbol

from inductor_triton.kernels.emitter import NOTHING, Emitter, Term
from inductor_triton.kernels.facts import Facts
from inductor_triton.kernels.indexing import indices
from inductor_triton.kernels.instructions import emit_instruction
from inductor_triton.kernels.kernel_plan import KernelPlan, select_parts
from inductor_triton.kernels.tiling import Axis, Tiling
from inductor_triton.spec import ERRORS, Config

if TYPE_CHECKING:
    from loopir import ElementFunction

LATE = ("score", "grad")
"""The inputs that are computed from a tile."""
LOOKUPS = (2, 4)
"""Bytes of elements for which there is an instruction of one lookup for each score."""
OUTSIDE = "outside"
"""Per row of a tile, whether an index was out of range."""
M, N = "mn"
"""Axes of a tile of scores: queries and keys."""


def tile_tiling(order: str, blocks: Mapping[str, int], config: Config) -> Tiling:
    """A tile whose dims are ``order``; each axis has the extent ``<axis>_length``."""
    axes = [
        Axis(dim, (Range(symbol(dim), symbol(f"{dim}_length")),), blocks[dim], place, 2)
        for place, dim in enumerate(order)
    ]
    return Tiling(tuple(axes), (), config)


class FunctionWriter:
    """Writes one function. What depends on neither the score nor the ``inner`` axis is written
    once, by ``before_loop``; the rest wherever ``in_loop`` is called.
    """

    def __init__(
        self, whole: Emitter, function: ElementFunction, given: Mapping[str, Term], inner: str
    ) -> None:
        self._whole = whole
        self._function = function
        self._given = dict(given)
        self._inner = inner
        self._emitter = self._new_emitter()
        self._outer: list[Instruction] = []
        self._rest: list[Instruction] = []
        self._divide()

    def _new_emitter(self) -> Emitter:
        whole, function = self._whole, self._function
        kernel = replace(whole.kernel, bodies=(function.body,))
        names = {str(buffer.name): buffer.dtype for buffer in kernel.buffers}
        axes = {axis.loops[0].symbol: axis.name for axis in whole.tiling.axes}
        facts = Facts(
            function.body.instructions,
            names | dict(function.dtypes),
            axes=axes,
            index_type=whole.index_type,
        )
        plan = KernelPlan(
            kernel, whole.tiling, select_parts((function.body,), facts), whole.index_type,
            whole.plan.limits,
        )  # fmt: skip
        emitter = Emitter(plan)
        emitter.taken, emitter.lines, emitter.indent = whole.taken, whole.lines, whole.indent
        emitter.uses_errors = whole.uses_errors
        own = definitions(plan.steps)
        emitter.names = dict(whole.names) | {name: whole.fresh(name) for name in own}
        emitter.symbols |= whole.symbols
        for size, (tensor, dim) in function.sizes.items():
            emitter.symbols[size] = Term(size_name(tensor, dim), NOTHING, torch.int64)
        emitter.unmasked = whole.unmasked
        return emitter

    def _divide(self) -> None:
        late: set[str] = set()
        for step in self._emitter.plan.steps:
            term = self._given.get(str(step.args[0])) if step.op == "load" else None
            varies = step.args[0] in LATE or (term is not None and self._inner in term.dims)
            if varies or step.op == "store" or not late.isdisjoint(step.reads):
                late.update([step.result] if step.result else [])
                self._rest.append(step)
            else:
                self._outer.append(step)

    def before_loop(self) -> None:
        """Writes what does not change in the loop."""
        self._emit(self._outer, {})

    def in_loop(self, changes: Mapping[str, Term]) -> Term:
        """Writes the rest on a tile; ``changes`` are inputs known only there. Returns the
        result's term.
        """
        emitter = self._emitter
        before = dict(emitter.values), dict(emitter.computed)
        result = self._emit(self._rest, changes)
        emitter.values, emitter.computed = before
        assert result is not None
        return result

    def _emit(self, steps: Sequence[Instruction], changes: Mapping[str, Term]) -> Term | None:
        emitter, result = self._emitter, None
        emitter.indent = self._whole.indent
        given = self._given | dict(changes)
        for step in steps:
            term = given.get(str(step.args[0])) if step.op == "load" else None
            if term is not None and step.result is not None:
                emitter.values[step.result] = term
            elif step.op == "store":
                result = emitter.operand(step.args[2])
            elif step.op == "indirect" and self._is_tile(step):
                self._check_index(step)
            elif step.op == "load" and self._is_lookup(step):
                self._look_up(step)
            else:
                emit_instruction(emitter, step)
        self._whole.uses_errors |= emitter.uses_errors or any(s.op == "indirect" for s in steps)
        return result

    def _is_tile(self, step: Instruction) -> bool:
        return len(self._emitter.operand(step.args[0]).dims) == len(self._emitter.tiling.axes)

    def _is_lookup(self, step: Instruction) -> bool:
        size = step.dtype.itemsize if step.dtype is not None else 0
        along = self._emitter.index(step.args[1])[1]  # type: ignore[arg-type]
        return size in LOOKUPS and len(along) == len(self._emitter.tiling.axes)

    def _look_up(self, step: Instruction) -> None:
        """Writes a load of another element for each score."""
        emitter, expr = self._emitter, step.args[1]
        assert isinstance(expr, sympy.Expr) and step.dtype is not None
        index, dims, indirect = emitter.index(expr)
        valid = " & ".join(term.valid for term in indirect if term.valid) or "True"
        inside = " & ".join(emitter.masks(dims)) or "True"
        text = (
            f"load_element{8 * step.dtype.itemsize}({emitter.name(str(step.args[0]))}, {index}, "
            f"{valid}, {inside}, {ERRORS})"
        )
        emitter.values[str(step.result)] = emitter.define(str(step.result), text, dims, step.dtype)

    def _is_reported(self, step: Instruction) -> bool:
        """Whether the lookups with an index report it."""
        loads = [
            other
            for other in self._emitter.plan.steps
            if other.op == "load" and str(step.result) in other.reads
        ]
        return bool(loads) and all(other.dtype.itemsize in LOOKUPS for other in loads)  # type: ignore[union-attr]

    def _check_index(self, step: Instruction) -> None:
        """Writes the check of an index that differs in each element of a tile. Unless lookups
        report what is out of range, it is noted per row: a store for each element would take more
        time than the product.
        """
        emitter, value, size = self._emitter, *step.args
        term, name = emitter.operand(value), str(step.result)
        assert isinstance(size, sympy.Expr)
        limit = emitter.index(size)[0]
        bits = "tl.uint32" if term.dtype is torch.int32 else "tl.uint64"
        valid = emitter.define(
            f"{name}_valid", f"{term.text}.to({bits}) < {limit}.to({bits})", term.dims, torch.bool
        )
        if not self._is_reported(step):
            outside = " & ".join([f"({valid.text} == 0)", *emitter.masks(term.dims)])
            emitter.line(f"{OUTSIDE} |= tl.reduce(({outside}).to(tl.int32), 1, combine_any)")
        found = emitter.define(name, f"{term.text}{emitter.index_cast}", term.dims, torch.int64)
        symbols: set[sympy.Symbol] = {
            symbol for expr in indices(emitter.plan.steps) for symbol in expr.free_symbols
        }  # type: ignore[assignment]
        index = next((known for known in symbols if known.name == name), sympy.Symbol(name))
        emitter.symbols[index] = replace(found, valid=valid.text)

    @property
    def looks_up(self) -> bool:
        """Whether ``in_loop`` notes an index that differs in each element."""
        return any(
            step.op == "indirect" and self._varies_twice(step) and not self._is_reported(step)
            for step in self._rest
        )

    def _varies_twice(self, step: Instruction) -> bool:
        along = self._axes_of(step.reads)
        return len(along) == len(self._emitter.tiling.axes)

    def _axes_of(self, names: Sequence[str]) -> frozenset[str]:
        known = definitions(self._emitter.plan.steps)
        found: frozenset[str] = frozenset()
        for name in names:
            step = known.get(name)
            if step is None:
                continue
            term = self._given.get(str(step.args[0])) if step.op == "load" else None
            is_late = step.op == "load" and step.args[0] in LATE
            every = frozenset(axis.name for axis in self._emitter.tiling.axes)
            found |= every if is_late else term.dims if term else self._axes_of(step.reads)
        return found


def size_name(tensor: str, dim: int) -> str:
    """The argument that has a size of a captured tensor."""
    return f"{tensor}_size{dim}"


def argument_kernel(
    name: str, buffers: Sequence[tuple[str, torch.dtype, str]], sizes: Sequence[str]
) -> Kernel:
    """A kernel without loops: the names and dtypes of a function's arguments."""
    made = [KernelBuffer(n, dtype, role, sympy.Integer(1)) for n, dtype, role in buffers]
    return Kernel(name, "cuda", tuple(made), tuple(map(symbol, sizes)), (), (), ())
