"""Programs as text (contract C5): kernels and templates, then the steps.

::

    # loopir.program 1, loopir.kernel 1, primops.graph 6
    @kernel(device='cpu', vector='x0')
    def kernel0(in0: In('float32', 8), out0: Out('float32', 8)):
        ...

    def program(in_x: f32[8]):
        buf0: f32[8] = allocate()
        launch(kernel0, in_x, buf0)
        return (buf0,)

A name among arguments and outputs is a whole buffer, ``view(buf0, (4,), (2,), 0)`` a part of one.
``call(ops.aten.mm.default, ...)`` is an extern call, ``call_view`` one whose results may share
memory with its arguments, and ``u0 = bind(0, 1)`` after it makes dim 1 of its result 0 a size. A
line without a value declares one of several results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import primops.text
import sympy
import torch
from symshapes.text.expressions import format_expression
from symshapes.text.form import TextForm
from symshapes.text.graphs import GraphWriter
from symshapes.text.tensors import TensorType, format_tensor_type
from symshapes.text.values import format_value

from .expr import format_expr
from .host_functions import ROOTS
from .node import Buffer, View
from .program import Allocate, Decision, ExternCall, Free, Launch, MakeView, Program
from .template import format_any, format_leaf
from .text import KERNELS

PROGRAMS = TextForm("loopir.program", 1, parts=(KERNELS, primops.text.FORM))


def format_program(program: Program) -> str:
    """The program as text, with its version; constants are named, and origins and decisions left
    out.

    Raises ``symshapes.text.values.Unwritable`` for an extern call of a function without a text.
    """
    writer = _ProgramWriter(program)
    kernels = [format_any(replace(kernel, origins=())).rstrip() for kernel in program.kernels]
    function = writer.function()
    return PROGRAMS.write("\n\n".join([*writer.graphs.parts(), *kernels, function]) + "\n")


def format_schedule(program: Program) -> str:
    """The program's steps, and each fusion that was considered, with its reason.

    What has no text is described in angle brackets.
    """
    writer = _ProgramWriter(program, strict=False)
    function = writer.function()
    decisions = [f"# {format_decision(decision)}" for decision in program.decisions]
    return "\n\n".join([*writer.graphs.parts(), "\n".join([function, *decisions])]) + "\n"


def format_decision(decision: Decision) -> str:
    """A fusion that was considered, in one line."""
    what = "fused" if decision.accepted else "kept apart"
    return f"{what}: {decision.first} and {decision.second}: {decision.reason}"


class _ProgramWriter:
    def __init__(self, program: Program, strict: bool = True) -> None:
        self.program = program
        form = replace(primops.text.GRAPHS, roots=ROOTS)
        self.graphs = GraphWriter(form, lines=False, strict=strict)

    def function(self) -> str:
        """The function ``program``; the graphs that it calls are then those of ``graphs``."""
        lines = [*self._declarations()]
        for step in self.program.steps:
            lines += getattr(self, f"_{type(step).__name__.lower()}")(step)
        outputs = tuple(self.program.outputs)
        lines.append(f"return {self._value(outputs)}")
        return "\n    ".join([f"def program({', '.join(self._parameters())}):", *lines])

    def _parameters(self) -> Iterable[str]:
        for position, entry in enumerate(self.program.inputs):
            if entry is None:
                yield f"unused_{position}: None"
            elif isinstance(entry, sympy.Symbol):
                yield f"{entry.name}: size"
            else:
                given = self._type(self.program.buffers[entry])
                yield f"{entry}: {f'number({given})' if entry in self.program.numbers else given}"

    def _declarations(self) -> Iterable[str]:
        program = self.program
        if program.hints:
            hints = sorted((symbol.name, value) for symbol, value in program.hints.items())
            yield f"hints({', '.join(f'{name}={value}' for name, value in hints)})"
        for condition, message in program.required:
            yield f"require({format_expression(condition)}, {message!r})"
        for name in program.constants:
            yield f"{name}: constant({self._type(program.buffers[name])})"

    def _type(self, buffer: Buffer) -> str:
        given = TensorType(buffer.dtype, buffer.shape, buffer.stride, buffer.device)
        return format_tensor_type(given, format_expr)

    def _allocate(self, step: Allocate) -> list[str]:
        reuse = f"reuses={step.reuses}" if step.reuses is not None else ""
        place = ", in_place=True" if step.in_place else ""
        return [f"{self._declared(step.buffer)} = allocate({reuse}{place})"]

    def _launch(self, step: Launch) -> list[str]:
        operands = [
            name if start == 0 else f"{name}[{format_expr(start)}:]"
            for name, start in step.operands
        ]
        kernel = self.program.kernels[step.kernel].name
        return [f"launch({', '.join([kernel, *operands])})"]

    def _makeview(self, step: MakeView) -> list[str]:
        return [f"{step.name} = {format_leaf(step.view)}"]

    def _free(self, step: Free) -> list[str]:
        return [f"free({step.buffer})"]

    def _externcall(self, step: ExternCall) -> list[str]:
        node = step.node
        declared = [self._declared(name) for name in node.result_names]
        target = ", ".join(name or "_" for name in node.results)
        if not node.single:
            target = f"({target}{',' * (len(node.results) == 1)})"
        elif declared:
            (target,) = declared
            declared = []
        arguments = [self._value(arg) for arg in node.args]
        arguments += [f"{name}={self._value(arg)}" for name, arg in node.kwargs]
        kind = "call_view" if node.aliases else "call"
        call = f"{kind}({', '.join([self.graphs.target(node.op), *arguments])})"
        binds = [f"{b.symbol.name} = bind({b.result}, {b.dim})" for b in node.binds]
        return [*declared, f"{target} = {call}", *binds]

    def _declared(self, name: str) -> str:
        return f"{name}: {self._type(self.program.buffers[name])}"

    def _value(self, value: Any) -> str:
        return self.graphs.checked(lambda: format_value(value, self._leaf))

    def _leaf(self, value: Any) -> str | None:
        if isinstance(value, torch.fx.GraphModule):
            return self.graphs.value(value)
        if type(value) is View and value.buffer in self.program.buffers:
            whole = value.is_whole(self.program.buffers[value.buffer])
            return value.buffer if whole else format_leaf(value)
        if isinstance(value, sympy.Basic):
            return f"size({format_expression(value)})"
        return format_leaf(value)
