"""A scheduled program (contract C5): steps that allocate, launch, call, view and free, in execution
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeAlias

import sympy
import torch

from loopir.errors import VerificationError

from .kernel import Kernel
from .node import Buffer, ExternNode, Origin, View
from .simplify import ZERO
from .template import Template


@dataclass(frozen=True, slots=True)
class Allocate:
    """Allocates a buffer, in the memory of the dead buffer ``reuses`` if that is given.
    ``in_place``: the next launch still reads the dead buffer; each point reads its element before
    it stores there.
    """

    buffer: str
    reuses: str | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs a kernel on buffers (in ``kernel.buffers`` order) with the program's sizes of the same
    names. ``starts``: the element of each buffer at which the kernel's buffer begins; empty if all
    are zero.
    """

    kernel: int
    buffers: tuple[str, ...]
    starts: tuple[sympy.Expr, ...] = ()

    @property
    def operands(self) -> Iterator[tuple[str, sympy.Expr]]:
        """Each buffer, with the element at which the kernel's buffer begins."""
        return zip_longest(self.buffers, self.starts, fillvalue=ZERO)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ExternCall:
    """Calls an operator; its results become buffers."""

    node: ExternNode


@dataclass(frozen=True, slots=True)
class MakeView:
    """Names a strided reinterpretation of a buffer."""

    name: str
    view: View


@dataclass(frozen=True, slots=True)
class Free:
    """Frees a buffer's memory."""

    buffer: str


Step: TypeAlias = Allocate | Launch | ExternCall | MakeView | Free


@dataclass(frozen=True, slots=True)
class Decision:
    """One fusion that the scheduler considered: the candidates, the decision, its reason, the bytes
    of memory traffic that it saves, and what the candidates compute: the origins of each of their
    nodes.
    """

    first: str
    second: str
    accepted: bool
    reason: str
    saved: int
    first_origins: tuple[tuple[Origin, ...], ...] = ()
    second_origins: tuple[tuple[Origin, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Kernels and the steps that use them.

    ``inputs``: a buffer name or size symbol per placeholder, None for others. ``outputs``: views of
    buffers, size expressions, numbers or None. ``hints``: example values of size symbols.
    ``numbers``: inputs that callers pass as Python floats; steps read them from a buffer of one
    float64. ``required``: conditions on sizes, with the message of the error that is raised, as
    soon as the sizes are known, if one is false.
    """

    inputs: tuple[str | sympy.Symbol | None, ...]
    buffers: dict[str, Buffer]
    constants: dict[str, torch.Tensor]
    kernels: tuple[Kernel | Template, ...]
    steps: tuple[Step, ...]
    outputs: tuple[object, ...]
    decisions: tuple[Decision, ...] = field(default=(), compare=False)
    hints: dict[sympy.Symbol, int] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    required: tuple[tuple[sympy.Basic, str], ...] = ()

    @property
    def launch_count(self) -> int:
        """Kernel launches per call."""
        return sum(isinstance(step, Launch) for step in self.steps)

    @property
    def freed_inputs(self) -> frozenset[str]:
        """The donated inputs whose memory is freed, or reused by other buffers, before the end."""
        gone = {step.buffer for step in self.steps if isinstance(step, Free)}
        gone |= {
            step.reuses for step in self.steps if isinstance(step, Allocate) and not step.in_place
        }
        return frozenset(entry for entry in self.inputs if isinstance(entry, str) and entry in gone)

    @property
    def written_inputs(self) -> frozenset[int]:
        """The inputs in whose memory a result is computed and written back to them."""
        freed = self.freed_inputs
        stored = {
            step.reuses for step in self.steps if isinstance(step, Allocate) and step.in_place
        }
        return frozenset(
            i for i, entry in enumerate(self.inputs) if entry in stored and entry not in freed
        )


def check_program(program: Program) -> None:
    """Raises :class:`VerificationError` naming the clause of C5 that the program violates.

    - C5.1 every step names buffers and kernels of the program
    - C5.2 buffers are allocated before use, not used after they are freed, and written before they
      are read
    - C5.3 size symbols are inputs or bound by an earlier extern call, once
    - C5.4 outputs that are views are of buffers that exist at the end
    """
    _ProgramChecker(program).check()


class _ProgramChecker:
    def __init__(self, program: Program) -> None:
        self.program = program
        inputs = [entry for entry in program.inputs if isinstance(entry, str)]
        self.alive = {*inputs, *program.constants}
        self.written = set(self.alive)
        self.views: set[str] = set()
        self.bound: set[sympy.Basic] = {
            entry for entry in program.inputs if isinstance(entry, sympy.Symbol)
        }
        self.symbols = set(self.bound)  # an input's sizes may also be computed
        for name in inputs:
            buffer = program.buffers[name]
            self.symbols |= {s for s in buffer.shape if isinstance(s, sympy.Symbol)}

    def check(self) -> None:
        for position, step in enumerate(self.program.steps):
            getattr(self, f"_check_{type(step).__name__.lower()}")(f"step {position}", step)
        for output in self.program.outputs:
            if isinstance(output, View):
                self._use("outputs", output.buffer, "C5.4")
                self._sizes("outputs", output.expressions)

    def _use(self, where: str, name: str, clause: str = "C5.2") -> None:
        if name not in self.program.buffers and name not in self.views:
            raise VerificationError("C5.1", f"{where}: unknown buffer {name}")
        if name not in self.alive:
            raise VerificationError(
                clause, f"{where}: {name} is not allocated here, or freed before"
            )
        if name not in self.written:
            raise VerificationError("C5.2", f"{where}: {name} is read before anything wrote it")

    def _sizes(self, where: str, exprs: Iterable[sympy.Expr]) -> None:
        unknown = {s for expr in exprs for s in expr.free_symbols} - self.symbols
        if unknown:
            raise VerificationError(
                "C5.3", f"{where}: sizes {sorted(map(str, unknown))} are not known yet"
            )

    def _check_allocate(self, where: str, step: Allocate) -> None:
        buffer = self.program.buffers[step.buffer]
        self._sizes(where, (*buffer.shape, *buffer.stride))
        if step.buffer in self.alive:
            raise VerificationError("C5.2", f"{where}: {step.buffer} is allocated twice")
        if step.reuses is not None:
            self._use(where, step.reuses)
            if not step.in_place:
                self.alive.discard(step.reuses)
            elif step.reuses in self.program.inputs:  # which it may differ from in some elements
                self.written.add(step.buffer)
        self.alive.add(step.buffer)

    def _check_launch(self, where: str, step: Launch) -> None:
        if not 0 <= step.kernel < len(self.program.kernels):
            raise VerificationError("C5.1", f"{where}: no kernel {step.kernel}")
        kernel = self.program.kernels[step.kernel]
        self._sizes(where, (*kernel.sizes, *step.starts))
        if len(step.buffers) != len(kernel.buffers):
            raise VerificationError(
                "C5.1", f"{where}: {kernel.name} takes {len(kernel.buffers)} buffers"
            )
        for name, declared in zip(step.buffers, kernel.buffers, strict=True):
            if declared.role == "out" and name in self.alive:
                self.written.add(name)
            self._use(where, name)
            if self.program.buffers[name].dtype != declared.dtype:
                raise VerificationError("C5.1", f"{where}: {name} is not {declared.dtype}")

    def _check_externcall(self, where: str, step: ExternCall) -> None:
        for name in sorted(step.node.read_names):
            self._use(where, name)
        for bind in step.node.binds:
            if bind.symbol in self.bound:
                raise VerificationError(
                    "C5.3", f"{where}: the size {bind.symbol} has a value already"
                )
            self.bound.add(bind.symbol)
        self.symbols |= self.bound
        made = set(step.node.result_names)
        if again := made & self.alive:
            raise VerificationError("C5.2", f"{where}: {sorted(again)} exist already")
        self.alive |= made
        self.written |= made

    def _check_makeview(self, where: str, step: MakeView) -> None:
        self._use(where, step.view.buffer)
        self._sizes(where, step.view.expressions)
        self.views.add(step.name)
        self.alive.add(step.name)
        self.written.add(step.name)

    def _check_free(self, where: str, step: Free) -> None:
        if step.buffer not in self.alive:
            raise VerificationError("C5.2", f"{where}: {step.buffer} is freed but not alive")
        self.alive.discard(step.buffer)
