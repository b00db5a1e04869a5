"""Writes score and mask functions on a tile with the emitter of loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch
from loopir import Instruction, Kernel, KernelBuffer, Range, definitions, symbol
from loopir.element_functions import ElementFunction

from inductor_triton.kernels.emitter import NOTHING, Emitter, Term
from inductor_triton.kernels.facts import Facts
from inductor_triton.kernels.instructions import emit_instruction
from inductor_triton.kernels.kernel_plan import KernelPlan, select_parts
from inductor_triton.kernels.tiling import Axis, Tiling
from inductor_triton.spec import Config

LATE = ("score", "grad")
"""The inputs that are computed from a tile."""
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
            else:
                emit_instruction(emitter, step)
        self._whole.uses_errors |= emitter.uses_errors or any(s.op == "indirect" for s in steps)
        return result


def size_name(tensor: str, dim: int) -> str:
    """The argument that has a size of a captured tensor."""
    return f"{tensor}_size{dim}"


def argument_kernel(
    name: str, buffers: Sequence[tuple[str, torch.dtype, str]], sizes: Sequence[str]
) -> Kernel:
    """A kernel without loops: the names and dtypes of a function's arguments."""
    made = [KernelBuffer(n, dtype, role, sympy.Integer(1)) for n, dtype, role in buffers]
    return Kernel(name, "cuda", tuple(made), tuple(map(symbol, sizes)), (), (), ())
